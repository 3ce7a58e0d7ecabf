package bench

import (
	"context"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// profiled runs the model once more, with --profile.
func (b *benchmark) profiled(ctx context.Context) (err error) {
	if err := b.profile.Begin(ctx); err != nil {
		return err
	}
	defer func() { err = b.profile.End(b.reportProfile, err) }()
	var classes []string
	for _, module := range b.pipeline.Modules() {
		classes = append(classes, module.Class)
	}
	b.profile.Describe(classes, b.report.Class, b.report.Device, b.report.Dtype)
	b.profile.Facts["mlx"] = b.report.Versions.MLX
	profiler, request := b.profile.Profiler, b.request(b.pipeline, b.repeat+1)
	request.Hook = profiler.Hook
	request.Progress = func(p models.Progress) {
		b.profile.Progress(publicProgress(p))
		b.show(p)
	}
	return mlx.Do(ctx, func() error {
		prepared, err := b.pipeline.Prepare(request, 1)
		if err != nil {
			return err
		}
		profiler.BeginImage("image")
		defer profiler.EndImage()
		_, err = prepared.Generate([]uint64{0})
		return err
	})
}

func (b *benchmark) reportProfile(r profile.Report) {
	j := r.JSON()
	b.report.Profile = &j
	r.Note(b.out)
}
