package main

import (
	"fmt"
	"runtime"

	"github.com/gomflux/gomflux"
)

// version returns the version of the program, of Go and of the platform.
func version() string {
	return fmt.Sprintf("gomflux %s %s %s/%s", gomflux.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
