package parity

import (
	"context"
	"fmt"
	"io"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/report"
)

// DefaultLiveMemory is the usual limit of [Live], in bytes.
const DefaultLiveMemory = 4_000_000_000

// Live replays a run of the reference while it goes on. The tensors come through a stream, as
// gomflux-reference stream writes it. It makes one pass, in which nothing runs freely: as in the
// last pass of [Replay], a module's error is that of its own arithmetic.
//
// It reads as far as it needs to, so the reference waits for it, and holds at most limit bytes of
// the reference's tensors. If that is not enough for what the reference has computed earlier, the
// error is a [MemoryError]. Errors of the stream, such as its early end, wrap [ErrStream]. The name
// of the run is for messages and the report.
func Live(ctx context.Context, name string, in io.Reader, limit int64, o Options) (*report.Report, error) {
	o.Readings, o.quick = []string{report.Isolated}, true
	var rep *report.Report
	err := mlx.Do(ctx, func() error {
		ref, err := openStream(in, limit, func() error { return context.Cause(ctx) })
		if err != nil {
			return err
		}
		defer ref.live.free()
		if err := ref.checkSettings(name); err != nil {
			return fmt.Errorf("%w: %w", ErrStream, err)
		}
		rep, err = o.replay(name, ref)
		return err
	})
	return rep, err
}
