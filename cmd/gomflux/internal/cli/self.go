package cli

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// afterInterrupt is how long a process of [Self] has to end.
const afterInterrupt = 10 * time.Second

// Self returns this program with arguments, as a process of its own that is interrupted when ctx is done.
func Self(ctx context.Context, args ...string) *exec.Cmd {
	program, err := os.Executable()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Args[0] = os.Args[0]
	if err != nil {
		cmd.Err = err
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = afterInterrupt
	return cmd
}
