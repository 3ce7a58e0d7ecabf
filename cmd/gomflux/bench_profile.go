package main

import (
	"context"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// profiled runs the model once more, with --profile.
func (b *benchmark) profiled(ctx context.Context) (err error) {
	if err := b.profile.begin(ctx); err != nil {
		return err
	}
	defer func() { err = b.profile.end(b.reportProfile, err) }()
	var classes []string
	for _, module := range b.pipeline.Modules() {
		classes = append(classes, module.Class)
	}
	b.profile.describe(classes, b.report.Class, b.report.Device, b.report.Dtype)
	b.profile.facts["mlx"] = b.report.Versions.MLX
	profiler, request := b.profile.profiler, b.request(b.pipeline, b.repeat+1)
	request.Hook = profiler.Hook
	request.Progress = func(p models.Progress) {
		b.profile.progress(publicProgress(p))
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

func (b *benchmark) reportProfile(r profileReport) {
	j := r.json()
	b.report.Profile = &j
	r.note(b.out)
}
