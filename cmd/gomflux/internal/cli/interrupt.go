package cli

import "sync/atomic"

// skip is what the next Ctrl-C calls instead of ending the command, nil for nothing.
var skip atomic.Pointer[func()]

// SkipOnInterrupt makes the next Ctrl-C call f instead of ending the command, until end is called.
func SkipOnInterrupt(f func()) (end func()) {
	skip.Store(&f)
	return func() { skip.Store(nil) }
}

// Skip calls the function of [SkipOnInterrupt], and reports whether there was one.
func Skip() bool {
	f := skip.Swap(nil)
	if f != nil {
		(*f)()
	}
	return f != nil
}
