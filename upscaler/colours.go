package upscaler

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// matchColours gives an image the colours of another of its size, both red, green and blue planes from -1 to 1: in CIELAB all of the
// distribution of a and b, and a fifth of that of the lightness. ComfyUI's nodes for SeedVR2 and mflux do so by default.
func matchColours(image, colours []float32) {
	const lightness = 0.2
	n := len(image) / 3
	x, y := labOf(image), labOf(colours)
	var all sync.WaitGroup
	for plane := range 3 {
		all.Go(func() {
			own, other := x[plane*n:(plane+1)*n], y[plane*n:(plane+1)*n]
			order := make([]int32, n)
			for i := range order {
				order[i] = int32(i)
			}
			slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(own[a], own[b]) })
			slices.Sort(other)
			share := float32(1)
			if plane == 0 {
				share = lightness
			}
			for rank, i := range order {
				own[i] += share * (other[rank] - own[i])
			}
		})
	}
	all.Wait()
	for i := range n {
		fy := (float64(x[i]) + 16) / 116
		f := [3]float64{fy + float64(x[n+i])/500, fy, fy - float64(x[2*n+i])/200}
		for j, v := range f {
			if v > labBend {
				f[j] = white[j] * v * v * v
			} else {
				f[j] = white[j] * (116*v - 16) / labSlope
			}
		}
		for j, row := range xyzToRGB {
			v := row[0]*f[0] + row[1]*f[1] + row[2]*f[2]
			if v > 0.0031308 {
				v = 1.055*math.Pow(v, 1/2.4) - 0.055
			} else {
				v *= 12.92
			}
			image[j*n+i] = float32(2*max(0, min(1, v)) - 1)
		}
	}
}

// The matrices of sRGB, the white of D65, and where the curve of CIELAB is a line, with its slope.
var (
	rgbToXYZ = [3][3]float64{{0.4124564, 0.3575761, 0.1804375}, {0.2126729, 0.7151522, 0.0721750}, {0.0193339, 0.1191920, 0.9503041}}
	white    = [3]float64{0.95047, 1, 1.08883}
	xyzToRGB = [3][3]float64{{3.2404542, -1.5371385, -0.4985314}, {-0.9692660, 1.8760108, 0.0415560}, {0.0556434, -0.2040259, 1.0572252}}
)

const labBend, labSlope = 6.0 / 29, 24389.0 / 27

// labOf returns the planes L, a and b.
func labOf(image []float32) []float32 {
	n := len(image) / 3
	out := make([]float32, len(image))
	for i := range n {
		var linear, f [3]float64
		for j := range linear {
			v := max(0, min(1, (float64(image[j*n+i])+1)/2))
			if v > 0.04045 {
				linear[j] = math.Pow((v+0.055)/1.055, 2.4)
			} else {
				linear[j] = v / 12.92
			}
		}
		for j, row := range rgbToXYZ {
			v := (row[0]*linear[0] + row[1]*linear[1] + row[2]*linear[2]) / white[j]
			if v > labBend*labBend*labBend {
				f[j] = math.Cbrt(v)
			} else {
				f[j] = (labSlope*v + 16) / 116
			}
		}
		out[i], out[n+i], out[2*n+i] = float32(116*f[1]-16), float32(500*(f[0]-f[1])), float32(200*(f[1]-f[2]))
	}
	return out
}
