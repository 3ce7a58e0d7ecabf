package bench

import (
	"context"
	"io/fs"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// text measures the language model, which writes a number of tokens.
func (b *benchmark) text(ctx context.Context, fsys fs.FS, tokens int) error {
	o, err := b.loadOptions()
	if err != nil {
		return err
	}
	start, r := time.Now(), &b.report
	return cli.ModelError(mlx.Do(ctx, func() error {
		m, err := models.LoadLanguageModel(fsys, o)
		if err != nil {
			return cli.Coded(cli.ExitModel, err)
		}
		defer m.Close()
		b.add("load", time.Since(start))
		b.pipeline = m.Pipeline()
		b.describeModel(m.Class())
		r.TextTokens, r.PromptTokens = tokens, b.promptTokens.OrElse(benchPromptTokens)
		r.Weights, r.Estimated, r.fileBytes = m.Memory(0), m.Memory(r.PromptTokens+tokens), b.pipeline.FileBytes()
		for run := range b.repeat + 1 {
			mlx.ResetPeakMemory()
			s := m.Measure(r.PromptTokens, tokens)
			b.add("read", s.Read)
			for _, d := range measuredSteps(run, s.Tokens) {
				b.add("token", d)
			}
			r.operations, r.Compiled = s.Operations, s.Compiled
			r.PeakMemory = max(r.PeakMemory, mlx.PeakMemory())
		}
		return nil
	}))
}
