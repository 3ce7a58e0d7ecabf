package catalog

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// TimeLayersShare returns the share of a transformer's weights that runs with low RAM free before their
// first step (see [family.TimeTabled]), from 0 to 1, by the configs of a published model. For another
// repository they are those of the first published model of the pipeline class.
func TimeLayersShare(repo, class string) float64 {
	if c := family.Find(class); c != nil {
		class = c.Name
	}
	var preset *Preset
	for i, p := range Presets {
		if p.Class == class && (preset == nil || p.Repo == repo) {
			preset = &Presets[i]
		}
	}
	if preset == nil {
		return 0
	}
	source, err := PublishedConfigs(preset)
	if err != nil {
		return 0
	}
	x, err := index.Read(source.FS)
	if err != nil {
		return 0
	}
	d, err := family.Declare(&component.Folder{FS: source.FS, Points: &hooks.Points{}, Dtype: mlx.BFloat16}, x)
	if err != nil {
		return 0
	}
	timed, ok := d.Pipeline.(family.TimeTabled)
	if !ok {
		return 0
	}
	freed := component.Parameters(timed.TimeLayers().Modules())
	var all, layers float64
	for _, p := range nn.Parameters(d.Transformer().Model) {
		n := float64(checkpoint.Len(p.Stored()))
		all += n
		if freed[p.Param] {
			layers += n
		}
	}
	return layers / all
}
