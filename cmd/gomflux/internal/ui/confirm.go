package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNoTerminal is returned where nobody can be asked.
var ErrNoTerminal = errors.New("standard input is not a terminal")

// Confirm asks a question that is answered with y or n; anything but y is no.
func (o *Output) Confirm(ctx context.Context, stdin io.Reader, question string) (bool, error) {
	if !IsTerminal(stdin) {
		return false, ErrNoTerminal
	}
	fmt.Fprintf(o.Stderr, "%s? [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted
		line, _ := bufio.NewReader(stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case line := <-answer:
		line = strings.ToLower(strings.TrimSpace(line))
		return line == "y" || line == "yes", nil
	}
}
