package upscaler

import "embed"

// Source has this package's source files, for debuggers. Programs that do not use it are linked without it.
//
//go:embed *.go
var Source embed.FS
