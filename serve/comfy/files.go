package comfy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A file is the name of an image: its type is input, output or temp.
type file struct {
	owner  string
	Name   string `json:"filename"`
	Folder string `json:"subfolder"`
	Type   string `json:"type"`
}

func (f file) key() string { return strings.Join([]string{f.owner, f.Type, f.Folder, f.Name}, "\x00") }

// inputFile returns the file that a node names, as folder/name [type].
func inputFile(owner, text string) file {
	f := file{owner: owner, Type: "input"}
	for _, kind := range []string{"input", "output", "temp"} {
		if rest, ok := strings.CutSuffix(text, " ["+kind+"]"); ok {
			text, f.Type = rest, kind
		}
	}
	f.Folder, f.Name = path.Split(strings.ReplaceAll(text, `\`, "/"))
	f.Folder = strings.Trim(f.Folder, "/")
	return f
}

// view sends an image.
func (h *Handler) view(w http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	name := inputFile(h.Owner(r), path.Join(q.Get("subfolder"), q.Get("filename")))
	name.Type = cmp.Or(q.Get("type"), "output")
	if id := r.PathValue("id"); id != "" {
		name.Name, name.Type = id, "temp"
	}
	data := h.files.Get(name.key())
	if data == nil {
		return nil, errs.NotFound(errors.New("no such image (the server keeps the newest ones)"))
	}
	w.Header().Set("Content-Type", http.DetectContentType(data))
	w.Write(data) // if it fails, the client is gone
	return nil, nil
}

// upload keeps an image, or for /upload/mask an image with the transparency of the mask that is sent.
func (h *Handler) upload(_ http.ResponseWriter, r *http.Request) (any, error) {
	part, head, err := r.FormFile("image")
	if err != nil {
		return nil, errs.Requestf("expected a file in the field image: %w", err)
	}
	defer r.MultipartForm.RemoveAll()
	defer part.Close()
	data, err := io.ReadAll(part)
	name := inputFile(h.Owner(r), path.Join(r.FormValue("subfolder"), head.Filename))
	if kind := r.FormValue("type"); kind == "temp" || kind == "output" {
		name.Type = kind
	}
	if strings.HasSuffix(r.URL.Path, "/mask") && err == nil {
		data, err = h.masked(name.owner, r.FormValue("original_ref"), data)
	}
	if len(name.Name)+len(name.Folder) > maxName || err != nil || !strings.HasPrefix(http.DetectContentType(data), "image/") {
		return nil, errs.Requestf("image: expected an image file with a short name (%v)", err)
	}
	over := r.FormValue("overwrite")
	if other := h.files.Get(name.key()); other != nil && over != "true" && over != "1" && !bytes.Equal(other, data) {
		name.Name = engine.NewID() + path.Ext(name.Name)
	}
	h.files.Put(name.key(), data)
	return map[string]string{"name": name.Name, "subfolder": name.Folder, "type": name.Type}, nil
}

// masked returns an image that was sent before with the transparency of a mask.
func (h *Handler) masked(owner, ref string, mask []byte) ([]byte, error) {
	name := file{Type: "output"}
	json.Unmarshal([]byte(ref), &name) // without a name there is no image
	name.owner = owner
	left := api.InputPixels(h.MaxPixels)
	original, err := api.DecodeImage(h.files.Get(name.key()), &left)
	m, second := api.DecodeImage(mask, &left)
	if err = errors.Join(err, second); err != nil {
		return nil, err
	}
	if m.Alpha == nil || m.Alpha.Rect != original.Image.Rect {
		return nil, fmt.Errorf("expected a mask with transparent pixels in the size %v", original.Image.Rect.Size())
	}
	out := image.NewNRGBA(m.Alpha.Rect)
	copy(out.Pix, original.Image.Pix)
	for i, a := range m.Alpha.Pix {
		out.Pix[4*i+3] = a
	}
	var b bytes.Buffer
	err = picture.Encode(&b, picture.PNG, out, nil)
	return b.Bytes(), err
}

// putImage keeps an image of Krita's plugin.
func (h *Handler) putImage(_ http.ResponseWriter, r *http.Request) (any, error) {
	data, err := io.ReadAll(r.Body)
	if err == nil {
		h.files.Put(file{owner: h.Owner(r), Name: r.PathValue("id"), Type: "input"}.key(), data)
	}
	return map[string]string{"status": "success"}, err
}
