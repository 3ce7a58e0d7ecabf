package protocol

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// childVariable makes the test binary a session, with the variable's value as its name
// and a status that it writes again and again.
const childVariable = "GOMFLUX_TEST_SESSION"

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(childVariable); ok {
		if err := child(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(name string) error {
	f, err := OpenFolder()
	if err != nil {
		return err
	}
	r, err := f.Reserve(name)
	if err != nil {
		return err
	}
	status := Status{Side: "gomflux", State: Running, Command: []string{"generate"}, PID: os.Getpid()}
	if err := r.WriteStatus(status); err != nil {
		return err
	}
	l, err := r.Listen()
	if err != nil {
		return err
	}
	go Serve(context.Background(), l, func(ctx context.Context, r Request) Answer {
		if r.Command == Continue {
			<-ctx.Done()
		}
		return Accepted(status)
	})
	for {
		if err := r.WriteStatus(status); err != nil {
			return err
		}
	}
}
