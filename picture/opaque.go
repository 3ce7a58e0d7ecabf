package picture

import (
	"image"
	"image/color"
)

// Opaque converts any image as Decode does: to 8-bit RGB, with transparent pixels
// blended with white. It returns an opaque *image.RGBA unchanged, an opaque
// *image.NRGBA with the same pixels in memory, and otherwise a new image that
// starts at 0, 0. For images from image/png and image/jpeg the
// result equals that of Decode, except for the EXIF orientation. It assumes that
// an *image.YCbCr comes from a JPEG file; those of golang.org/x/image/webp have a
// different range.
func Opaque(img image.Image) *image.RGBA { return opaque(img, JPEG) }

// opaque is Opaque for the image of a format's decoder.
func opaque(src image.Image, format Format) *image.RGBA {
	switch m := src.(type) {
	case *image.RGBA:
		if m.Opaque() {
			return m
		}
	case *image.NRGBA:
		if m.Opaque() {
			return (*image.RGBA)(m) // the same bytes
		}
	}
	r := src.Bounds()
	dst := image.NewRGBA(image.Rect(0, 0, r.Dx(), r.Dy()))
	at := pixels(src, format)
	i := 0
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			p := dst.Pix[i : i+4 : i+4]
			p[0], p[1], p[2] = at(x, y)
			p[3] = 0xff
			i += 4
		}
	}
	return dst
}

// pixels returns a function that reads a pixel of an image. Most image types need
// their own, since image.Image's At multiplies by alpha and truncates.
func pixels(src image.Image, format Format) func(x, y int) (r, g, b uint8) {
	switch m := src.(type) {
	case *image.YCbCr:
		full, convert := upsample(m, format), color.YCbCrToRGB
		if format == WebP {
			convert = studioToRGB
		}
		return func(x, y int) (r, g, b uint8) {
			ci := full.COffset(x, y)
			return convert(full.Y[full.YOffset(x, y)], full.Cb[ci], full.Cr[ci])
		}
	case *image.NYCbCrA, *image.NRGBA, *image.Paletted:
		at := straight(src)
		return func(x, y int) (r, g, b uint8) { return overWhite(at(x, y)) }
	case *image.NRGBA64:
		return func(x, y int) (r, g, b uint8) {
			c := m.NRGBA64At(x, y)
			return overWhite16(c.R, c.A), overWhite16(c.G, c.A), overWhite16(c.B, c.A)
		}
	}
	// Gray, Gray16, RGBA and RGBA64 (both opaque, from decoders), CMYK, and image
	// types of other packages
	return func(x, y int) (uint8, uint8, uint8) {
		r, g, b, a := src.At(x, y).RGBA()
		over := func(c uint32) uint8 { return overWhite16(uint16(min(c+0xffff-a, 0xffff)), 0xffff) }
		return over(r), over(g), over(b)
	}
}

// overWhite blends a colour that is not premultiplied with white.
func overWhite(r, g, b, alpha uint8) (uint8, uint8, uint8) {
	if alpha == 0xff {
		return r, g, b
	}
	a := uint32(alpha)
	over := func(c uint8) uint8 { return uint8((uint32(c)*a + 0xff*(0xff-a) + 0x7f) / 0xff) }
	return over(r), over(g), over(b)
}

// overWhite16 is overWhite for a 16-bit value, rounded to 8 bits.
func overWhite16(c, alpha uint16) uint8 {
	const limit = 0xffff
	v := uint64(c)*uint64(alpha) + limit*uint64(limit-alpha) // 0 to limit*limit
	return uint8((v + limit*257/2) / (limit * 257))
}

// studioToRGB converts the YCbCr of WebP, whose luma is from 16 to 235 (BT.601).
// golang.org/x/image/webp returns it as image.YCbCr, although that type has the
// full range of JPEG. The arithmetic is libwebp's (src/dsp/yuv.h).
func studioToRGB(y, cb, cr uint8) (r, g, b uint8) {
	times := func(v uint8, f int32) int32 { return int32(v) * f >> 8 }
	clip := func(v int32) uint8 { return uint8(min(max(v>>6, 0), 0xff)) }
	l := times(y, 19077)
	return clip(l + times(cr, 26149) - 14234),
		clip(l - times(cb, 6419) - times(cr, 13320) + 8708),
		clip(l + times(cb, 33050) - 17685)
}

// upsample doubles the width, the height or both of an image's subsampled chroma by
// linear interpolation, as libjpeg ("fancy upsampling") and libwebp do. Go's color
// conversion does not interpolate. Other images are returned unchanged.
func upsample(m *image.YCbCr, format Format) *image.YCbCr {
	wide := m.SubsampleRatio == image.YCbCrSubsampleRatio422 || m.SubsampleRatio == image.YCbCrSubsampleRatio420
	high := m.SubsampleRatio == image.YCbCrSubsampleRatio440 || m.SubsampleRatio == image.YCbCrSubsampleRatio420
	w, h := m.Rect.Dx(), m.Rect.Dy()
	if !wide && !high || wide && format == JPEG && w <= 4 { // libjpeg does not interpolate so few
		return m
	}
	full := *m
	full.SubsampleRatio, full.CStride = image.YCbCrSubsampleRatio444, w
	full.Cb = upsamplePlane(m.Cb, m.CStride, w, h, wide, high)
	full.Cr = upsamplePlane(m.Cr, m.CStride, w, h, wide, high)
	return &full
}

// upsamplePlane enlarges a plane to w times h values. In each direction a value is
// the mean of the two nearest, with weights 3/4 and 1/4.
func upsamplePlane(src []uint8, stride, w, h int, wide, high bool) []uint8 {
	dst := make([]uint8, 0, w*h)
	cw, ch := w, h
	if wide {
		cw = (w + 1) / 2
	}
	if high {
		ch = (h + 1) / 2
	}
	sum := make([]int, cw)
	for y := range h {
		shift, round := 0, [2]int{} // of even and odd columns
		if high {
			near, far := neighbours(y, ch)
			for x := range sum {
				sum[x] = 3*int(src[near*stride+x]) + int(src[far*stride+x])
			}
			shift, round = 2, [2]int{1 + y%2, 1 + y%2}
		} else {
			for x := range sum {
				sum[x] = int(src[y*stride+x])
			}
		}
		if wide {
			shift += 2
			round = [2]int{1, 2}
			if high {
				round = [2]int{8, 7}
			}
		}
		for x := range w {
			v := 0
			if wide {
				near, far := neighbours(x, cw)
				v = 3*sum[near] + sum[far]
			} else {
				v = sum[x]
			}
			dst = append(dst, uint8((v+round[x%2])>>shift))
		}
	}
	return dst
}

// neighbours returns the indices of the nearest and second nearest of n values to
// position i on an axis with twice as many.
func neighbours(i, n int) (near, far int) {
	near = i / 2
	return near, min(max(near-1+i%2*2, 0), n-1)
}

// AlphaOf returns the alpha channel of an image, from 0, transparent, to 255, opaque. It starts at
// 0, 0. AlphaOf returns nil if all of the image is opaque.
func AlphaOf(img image.Image) *image.Alpha {
	t := Transparent(img)
	if t == nil {
		return nil
	}
	alpha := image.NewAlpha(image.Rect(0, 0, t.Rect.Dx(), t.Rect.Dy()))
	for y := range t.Rect.Dy() {
		row := t.Pix[y*t.Stride:]
		for x := range t.Rect.Dx() {
			alpha.Pix[y*alpha.Stride+x] = row[4*x+3]
		}
	}
	return alpha
}
