package upscaler

import (
	"math"
	"testing"
)

// TestMatchColours compares with lab_color_transfer of numz's ComfyUI-SeedVR2_VideoUpscaler at commit 4490bd1, in float32 and without
// its wavelet reconstruction: every 561st value for two images of 56x40 pixels.
func TestMatchColours(t *testing.T) {
	want := []float32{-0.53280234, 0.7634863, -0.41872805, 0.6209943, 0.758338, -0.32607937, 0.71924484, 0.72681093, -0.318435, 0.51560616,
		0.6425587, -0.38319445}
	image, colours := make([]float32, 3*40*56), make([]float32, 3*40*56)
	value := func(i, offset int) float64 { return float64((i*i*104729+i*7919+offset)%65521)/32760 - 1 }
	for i := range image {
		image[i], colours[i] = float32(value(i, 0)), float32(value(i, 5))*0.6+0.2
	}
	matchColours(image, colours)
	for i, w := range want {
		if got := image[561*i]; !(math.Abs(float64(got-w)) < 1e-4) {
			t.Errorf("value %d is %g, expected %g", 561*i, got, w)
		}
	}
}
