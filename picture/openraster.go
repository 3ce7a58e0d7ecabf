package picture

import (
	"archive/zip"
	"bytes"
	"fmt"
	"image"
	"io"
	"path/filepath"
	"strings"
)

// IsOpenRaster reports whether a file of this name is written as OpenRaster.
func IsOpenRaster(name string) bool { return strings.EqualFold(filepath.Ext(name), ".ora") }

// thumbnailSide is the largest side of the thumbnail in an OpenRaster file.
const thumbnailSide = 256

// EncodeOpenRaster writes layers, the lowest first, and the image that they compose, as OpenRaster, which
// image editors open. Each of its PNG files has s as metadata if s is not nil, as with [Encode].
func EncodeOpenRaster(w io.Writer, composed image.Image, layers []*image.NRGBA, s *Settings) error {
	z := zip.NewWriter(w)
	f, err := z.CreateHeader(&zip.FileHeader{Name: "mimetype", Method: zip.Store})
	if err == nil {
		_, err = io.WriteString(f, "image/openraster")
	}
	if err != nil {
		return err
	}
	add := func(name string, write func(io.Writer) error) {
		if err != nil {
			return
		}
		var f io.Writer
		if f, err = z.Create(name); err == nil {
			err = write(f)
		}
	}
	size := composed.Bounds().Size()
	var stack bytes.Buffer
	stack.WriteString("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
	fmt.Fprintf(&stack, "<image version=\"0.0.5\" w=\"%d\" h=\"%d\">\n <stack>\n", size.X, size.Y)
	for i := len(layers); i > 0; i-- { // the highest first
		fmt.Fprintf(&stack, "  <layer name=\"Layer %d\" src=\"data/layer%[1]d.png\" x=\"0\" y=\"0\" opacity=\"1.0\" "+
			"visibility=\"visible\" composite-op=\"svg:src-over\"/>\n", i)
	}
	stack.WriteString(" </stack>\n</image>\n")
	add("stack.xml", func(w io.Writer) error { _, err := w.Write(stack.Bytes()); return err })
	for i, layer := range layers {
		add(fmt.Sprintf("data/layer%d.png", i+1), func(w io.Writer) error { return Encode(w, PNG, layer, ofLayer(s, i+1)) })
	}
	add("mergedimage.png", func(w io.Writer) error { return Encode(w, PNG, composed, s) })
	add("Thumbnails/thumbnail.png", func(w io.Writer) error { return Encode(w, PNG, thumbnail(composed), nil) })
	if err != nil {
		return err
	}
	return z.Close()
}

// ofLayer returns the settings of a layer.
func ofLayer(s *Settings, n int) *Settings {
	if s == nil {
		return nil
	}
	own := *s
	own.Layer = n
	return &own
}

// thumbnail returns an image scaled down to thumbnailSide.
func thumbnail(img image.Image) image.Image {
	size := img.Bounds().Size()
	side := max(size.X, size.Y)
	if side <= thumbnailSide {
		return img
	}
	scaled := func(v int) int { return max(1, v*thumbnailSide/side) }
	if m := Transparent(img); m != nil {
		return ResizeTransparent(m, scaled(size.X), scaled(size.Y))
	}
	return Resize(Opaque(img), scaled(size.X), scaled(size.Y))
}
