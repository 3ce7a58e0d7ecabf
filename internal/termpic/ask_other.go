//go:build !unix

package termpic

import (
	"context"
	"os"
	"time"

	"golang.org/x/term"
)

// ask does not ask: the environment has to tell.
func ask(context.Context, *os.File, time.Duration) answers { return answers{} }

func sizeOf(f *os.File) termSize {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return termSize{}
	}
	return termSize{cols: cols, rows: rows}
}
