package tuning

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/plainjson"
)

// Env is the environment variable that, set to 0, ignores profiles.
const Env = "GOMFLUX_TUNING"

// Off reports whether profiles are to be ignored.
func Off() bool { return os.Getenv(Env) == "0" }

// A Machine is what a profile was measured on. A profile is used only if all of it is equal.
type Machine struct {
	Device       string `json:"device"` // cpu, metal or cuda
	Name         string `json:"name"`
	Architecture string `json:"architecture,omitempty"`
	// Memory is the device's memory in GiB, rounded down.
	Memory uint64 `json:"memory_gib"`
	CPUs   int    `json:"cpus"`
	System string `json:"system"`
	Driver string `json:"driver,omitempty"` // of a GPU, where it is no part of the system
	BLAS   string `json:"blas,omitempty"`
	MLX    string `json:"mlx"`
	// MacOS is the oldest version of macOS that MLX is built for, on which its kernels depend.
	MacOS string `json:"built_for_macos,omitempty"`
	// Kernels is [mlx.ReplacementsVersion].
	Kernels string `json:"kernels"`
}

// differs names the first part in which two machines differ, "" if they are equal.
func (m Machine) differs(other Machine) string {
	for _, part := range []struct{ name, a, b string }{
		{"device", m.Device, other.Device}, {"name", m.Name, other.Name}, {"architecture", m.Architecture, other.Architecture},
		{"memory", fmt.Sprintf("%d GiB", m.Memory), fmt.Sprintf("%d GiB", other.Memory)},
		{"number of CPUs", fmt.Sprint(m.CPUs), fmt.Sprint(other.CPUs)}, {"system", m.System, other.System},
		{"driver", m.Driver, other.Driver}, {"BLAS", m.BLAS, other.BLAS}, {"MLX", m.MLX, other.MLX},
		{"MLX for macOS", m.MacOS, other.MacOS},
		{"version of gomflux's kernels", m.Kernels, other.Kernels},
	} {
		if part.a != part.b {
			return fmt.Sprintf("%s %q, here %q", part.name, part.a, part.b)
		}
	}
	return ""
}

// profileVersion is the version of the files, and the only one that is read.
const profileVersion = 1

// A Profile is the result of a measurement on a machine.
type Profile struct {
	Version  int       `json:"version"`
	Machine  Machine   `json:"machine"`
	Created  time.Time `json:"created"`
	Seconds  float64   `json:"seconds"` // that it took
	Settings Settings  `json:"settings"`
	// Measured has the times that the settings follow from.
	Measured []Result `json:"measured"`
}

// Folder returns the folder of profiles in the user's cache folder.
func Folder() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for tuned profiles: %w (set HOME)", err)
	}
	return filepath.Join(dir, "gomflux", "tuning"), nil
}

// File returns the path of a machine's profile. Machines with the same kind of device share one.
func File(m Machine) (string, error) {
	dir, err := Folder()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, fileName(m.Device+" "+m.Name)+".json"), nil
}

// fileName keeps letters and digits of a text, in lower case, with hyphens for the rest.
func fileName(text string) string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9') })
	name := strings.Join(words, "-")
	return name[:min(len(name), 100)]
}

// An Error is about a profile that is not used.
type Error struct {
	Path  string
	Other string // how the machine differs, "" if the file cannot be read
	Err   error  // nil if the profile is one of another machine
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("the tuned profile %s is ignored: it was measured with %s (gomflux bench --tune replaces it)", e.Path, e.Other)
	}
	return fmt.Sprintf("the tuned profile %s is ignored: %v (gomflux bench --tune replaces it)", e.Path, oserr.Bare(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// Read reads the profile of a machine. There may be none: the result is nil then. A profile that
// is damaged or of another machine is an [*Error].
func Read(m Machine) (*Profile, error) {
	path, err := File(m)
	if err != nil {
		return nil, nil // no folder, so no profile
	}
	data, err := checkpoint.ReadText(os.DirFS(filepath.Dir(path)), filepath.Base(path), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{Path: path, Err: errors.Unwrap(err)} // without the file's name
	}
	p, err := parse(data)
	if err != nil {
		return nil, &Error{Path: path, Err: err}
	}
	if other := p.Machine.differs(m); other != "" {
		return nil, &Error{Path: path, Other: other}
	}
	return p, nil
}

// maxFile is the size of the largest profile that is read, in bytes.
const maxFile = 1 << 20

// parse reads a profile and checks its settings.
func parse(data []byte) (*Profile, error) {
	var p Profile
	if err := checkpoint.ParseJSON(data, &p); err != nil {
		return nil, err
	}
	if p.Version != profileVersion {
		return nil, fmt.Errorf("version %d: expected %d", p.Version, profileVersion)
	}
	if err := p.Settings.validate(); err != nil {
		return nil, err
	}
	if p.Created.IsZero() {
		return nil, errors.New("damaged: no time")
	}
	return &p, nil
}

// A Writer is a profile that is being measured. Its file is made before that, so that a folder in
// which nothing can be written is an error before minutes of measuring.
type Writer struct {
	path string
	file *atomicfile.File
}

// NewWriter prepares the file of a machine's profile. The caller must call [Writer.Close].
func NewWriter(m Machine) (*Writer, error) {
	path, err := File(m)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, fmt.Errorf("cannot keep a tuned profile in %s: %w", filepath.Dir(path), oserr.Bare(err))
	}
	f, err := atomicfile.New(path)
	if err != nil {
		return nil, fmt.Errorf("cannot keep a tuned profile in %s: %w", filepath.Dir(path), oserr.Bare(err))
	}
	return &Writer{path, f}, nil
}

// Write writes the profile, in place of an older one, and returns its path.
func (w *Writer) Write(p *Profile) (path string, err error) {
	p.Version = profileVersion
	err = w.file.Fill(func(to io.Writer) error { return plainjson.Write(to, p, "  ") })
	if err == nil {
		err = w.file.Replace(w.path)
	}
	if err != nil {
		return "", fmt.Errorf("tuned profile %s: %w", w.path, oserr.Bare(err))
	}
	return w.path, nil
}

// Close removes the file unless it was written.
func (w *Writer) Close() { w.file.Discard() }
