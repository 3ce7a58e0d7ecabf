package catalog

import (
	"math"
	"testing"
)

// TestTimeLayersShare compares the share with the numbers of the published configs: FLUX.1 has 19 blocks
// with two modulations of 6 widths of 3072, 38 with one of 3 and a last one of 2; Qwen-Image 60 blocks.
func TestTimeLayersShare(t *testing.T) {
	const square = 3072 * 3072
	for _, test := range []struct {
		repo, class string
		want        float64
	}{
		{"black-forest-labs/FLUX.1-dev", "FluxPipeline", (19*2*6 + 38*3 + 2) * square / 11.90e9},
		{"black-forest-labs/FLUX.1-Fill-dev", "FluxFillPipeline", (19*2*6 + 38*3 + 2) * square / 11.90e9},
		{"someone/fine-tuned", "FluxPipeline", (19*2*6 + 38*3 + 2) * square / 11.90e9},
		{"Qwen/Qwen-Image", "QwenImagePipeline", (60*2*6 + 2) * square / 20.43e9},
		{"Qwen/Qwen-Image-Edit-2511", "QwenImageEditPlusPipeline", (60*2*6 + 2) * square / 20.43e9},
		{"Tongyi-MAI/Z-Image-Turbo", "ZImagePipeline", 0},
		{"someone/else", "NoPipeline", 0},
	} {
		if got := TimeLayersShare(test.repo, test.class); math.Abs(got-test.want) > 0.005 {
			t.Errorf("%s: %.4f, expected %.4f", test.repo, got, test.want)
		}
	}
}
