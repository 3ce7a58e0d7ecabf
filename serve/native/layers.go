package native

import (
	"bytes"
	"image"
	"image/draw"
	"net/http"
	"strconv"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// layersURL returns the address of the layers of a job's image, to which the number of one is added, or
// ora for an OpenRaster file.
func layersURL(id string, index int) string {
	return "/api/v1/jobs/" + id + "/pictures/" + strconv.Itoa(index) + "?layer="
}

// storeLayers stores the layers of an image in the gallery, and returns their names.
func (a *API) storeLayers(owner string, p *engine.Picture) (names []string, err error) {
	for i, layer := range p.Result.Layers {
		s := p.Result.Settings
		s.Layer = i + 1
		entry, err := a.Gallery.Add(owner, layer, s)
		if err != nil {
			return nil, err
		}
		names = append(names, entry.Name)
	}
	return names, nil
}

// layer serves a layer of a job's image, by its number, or all of them as ora.
func (a *API) layer(w http.ResponseWriter, r *http.Request, p *engine.Picture, which string) error {
	kept := a.names(r.Context(), p)
	n, err := strconv.Atoi(which)
	switch {
	case which == "ora":
	case err != nil || n < 1 || n > p.Result.Settings.Layers:
		return api.NotFoundf("the image has no such layer")
	case n <= len(kept.Layers):
		return a.file(w, r, kept.Layers[n-1])
	}
	all, composed := p.Result.Layers, image.Image(nil)
	if len(all) > 0 {
		composed = p.Result.Pixels()
	} else if composed, all, err = a.storedLayers(r, kept); err != nil {
		return err
	}
	var b bytes.Buffer
	name, kind, s := "gomflux-"+strconv.FormatUint(p.Seed, 10), "image/png", p.Result.Settings
	if which == "ora" {
		name, kind = name+".ora", "image/openraster"
		recorded := api.Recorded(s)
		err = picture.EncodeOpenRaster(&b, composed, all, recorded)
	} else {
		s.Layer, name = n, name+"-"+which+".png"
		err = api.EncodePNG(&b, all[n-1], s)
	}
	if err != nil {
		return err
	}
	pngHeaders(w, r, name)
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.Bytes()))
	return nil
}

// storedLayers reads an image and its layers from the gallery.
func (a *API) storedLayers(r *http.Request, s engine.Names) (composed *image.NRGBA, all []*image.NRGBA, err error) {
	if s.Name == "" || len(s.Layers) == 0 {
		return nil, nil, api.NotFoundf("the image has no layers")
	}
	for _, name := range append([]string{s.Name}, s.Layers...) {
		f, _, err := a.Gallery.Open(a.Owner(r), name)
		if err != nil {
			return nil, nil, gone(err)
		}
		img, _, err := image.Decode(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		m := image.NewNRGBA(img.Bounds())
		draw.Draw(m, m.Rect, img, m.Rect.Min, draw.Src)
		all = append(all, m)
	}
	return all[0], all[1:], nil
}
