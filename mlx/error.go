package mlx

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"unsafe"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// An Error is the failure of an MLX operation. Operations panic with it; [Do] returns
// it.
type Error struct {
	Message string // from MLX
	File    string // the source file of the first caller outside this package
	Line    int
}

func (e *Error) Error() string {
	if e.File == "" {
		return "mlx: " + e.Message
	}
	// two path elements identify the file and reveal nothing about the machine
	dir, file := filepath.Split(e.File)
	return fmt.Sprintf("mlx: %s (%s/%s:%d)", e.Message, filepath.Base(dir), file, e.Line)
}

// lastMessage is the error handler's latest message. It is written and read on the MLX
// thread.
var lastMessage string

// installErrorHandler replaces mlx-c's own handler, which ends the process.
func installErrorHandler() {
	mlxc.SetErrorHandler(mlxc.Callback(func(msg *byte, _ uintptr) uintptr {
		lastMessage = cString(msg)
		return 0
	}), 0, 0)
}

// check panics if a call into mlx-c failed.
func check(rc int32) {
	if rc != 0 {
		raise("%s", takeMessage())
	}
}

// raise panics with an [*Error] that names the first caller outside package
// mlx.
func raise(format string, args ...any) {
	e := &Error{Message: fmt.Sprintf(format, args...)}
	e.File, e.Line = outsideCaller()
	panic(e)
}

// catch, when deferred, recovers from an operation's panic and sets err to its [*Error].
func catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case *Error:
		*err = p
	default:
		panic(p)
	}
}

// Try runs f and returns the error of an operation that fails in it, instead of ending the
// job.
func Try(f func()) (err error) {
	outer := scopes
	defer func() {
		if err != nil {
			unwind(outer)
		}
	}()
	defer catch(&err)
	f()
	return nil
}

func takeMessage() string {
	msg := lastMessage
	lastMessage = ""
	if msg == "" {
		return "operation failed without a message"
	}
	return cleanMessage(msg)
}

var (
	// mlx-c appends the location in its own source, as a path of the build machine
	sourceSuffix = regexp.MustCompile(`(?s)^(.*)\s+at [^\n]+\.(?:cpp|h):\d+$`)
	sourcePath   = regexp.MustCompile(`/\S*/((?:mlx|mlx-c)/\S+\.(?:cpp|h|cu|metal)\b)`)
)

func cleanMessage(msg string) string {
	msg = sourceSuffix.ReplaceAllString(strings.TrimSpace(msg), "$1")
	msg = sourcePath.ReplaceAllString(msg, "$1")
	for _, h := range metalHints {
		if strings.Contains(msg, h.sign) {
			return msg + " " + h.hint
		}
	}
	return msg
}

// metalHints are hints for failures on a Mac, by a part of the message of Metal or MLX. The
// signs are Metal's names of errors of command buffers; system and driver add a text to them.
var metalHints = []struct{ sign, hint string }{
	{"kIOGPUCommandBufferCallbackErrorTimeout", "(macOS ends work that keeps the GPU for several seconds: generate a smaller image, " +
		"or fewer at once, and close what else uses the GPU)"},
	{"kIOGPUCommandBufferCallbackErrorHang", "(macOS ends work that keeps the GPU for several seconds: generate a smaller image, " +
		"or fewer at once; if it comes again, set GOMFLUX_KERNELS=0 and report it)"},
	{"kIOGPUCommandBufferCallbackErrorImpactingInteractivity", "(macOS ended the work because the display had to wait: generate a " +
		"smaller image, or let the display sleep with pmset displaysleepnow, or set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1, which " +
		"makes the display jerk instead)"},
	{"kIOGPUCommandBufferCallbackErrorSubmissionsIgnored", "(after several failures macOS takes no more work from this process: start " +
		"gomflux again, with a smaller image)"},
	{"kIOGPUCommandBufferCallbackErrorInnocentVictim", "(other work on the GPU failed: try again)"},
	{"kIOGPUCommandBufferCallbackErrorOutOfMemory", "(generate a smaller image, quantize the weights, or close other programs; gomflux " +
		"models --mac lists what fits)"},
	{"greater than the maximum allowed buffer size", "(Metal limits the size of an array: generate a smaller image, or fewer at once)"},
}

const packagePath = "github.com/gomflux/gomflux/mlx."

// outsideCaller returns the source position of the nearest caller outside this package.
func outsideCaller() (file string, line int) {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		own := strings.HasPrefix(f.Function, packagePath) && !strings.HasSuffix(f.File, "_test.go")
		if !own && !strings.HasPrefix(f.Function, "runtime.") {
			return f.File, f.Line
		}
		if !more {
			return "", 0
		}
	}
}

// cString copies a C string.
func cString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
