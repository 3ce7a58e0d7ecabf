package cli

import (
	"fmt"
	"runtime"

	"github.com/gomflux/gomflux"
)

// Version returns the version of the program, of Go and of the platform.
func Version() string {
	return fmt.Sprintf("gomflux %s %s %s/%s", gomflux.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
