package protocol

import (
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOtherUser: a process of another user gets no answer even if it can open the
// socket.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	f := newFolder(t)
	serve(t, f, "1", echo)
	for path, mode := range map[string]os.FileMode{
		os.Getenv("XDG_RUNTIME_DIR"): 0o755, f.Path: 0o755, f.file("1", socketSuffix): 0o666,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		uid    int
		served bool
	}{{0, true}, {12345, false}} {
		answer := make(chan string)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(c.uid), ^uintptr(0)); errno != 0 {
				answer <- errno.Error()
				return
			}
			answer <- talk(f.file("1", socketSuffix))
		}()
		if got := <-answer; strings.Contains(got, `"ok":true`) != c.served || strings.HasPrefix(got, "socket") {
			t.Errorf("user %d got %q", c.uid, got)
		}
	}
}

// talk uses system calls of this thread only.
func talk(path string) string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "socket: " + err.Error()
	}
	conn := os.NewFile(uintptr(fd), path)
	defer conn.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return "socket: " + err.Error()
	}
	io.WriteString(conn, `{"command":"breaks"}`+"\n")
	answer := make([]byte, 1000)
	n, _ := conn.Read(answer)
	return string(answer[:n])
}
