package native

import "github.com/gomflux/gomflux/serve/engine"

var _ Engine[*engine.Job] = (*engine.Engine)(nil)
