package native

import "github.com/gomflux/gomflux/internal/serve/engine"

var _ Engine[*engine.Job] = (*engine.Engine)(nil)
