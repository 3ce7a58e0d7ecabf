package openai

import (
	"bytes"
	"encoding/base64"
	"image"
	"net/http"
	"strconv"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// imageTokens returns the number of tokens of an image: one for each 16x16 pixels.
func imageTokens(width, height int) int {
	const side = 16
	return (width + side - 1) / side * ((height + side - 1) / side)
}

// usageOf counts the tokens of some images of a request. They share its input.
func (r *request) usageOf(pictures []*engine.Picture) map[string]any {
	text, output := 0, 0
	for _, p := range pictures {
		text = p.Result.PromptTokens
		output += imageTokens(p.Result.Image.Bounds().Dx(), p.Result.Image.Bounds().Dy())
	}
	input := text + r.inputUnits
	return map[string]any{
		"input_tokens": input, "input_tokens_details": map[string]int{"image_tokens": r.inputUnits, "text_tokens": text},
		"output_tokens": output, "total_tokens": input + output,
	}
}

// encode returns the file of an image: the bytes that gomflux generate writes, unless the request
// sets a JPEG quality.
func (r *request) encode(p *engine.Picture) ([]byte, error) {
	return r.write(p.Result.Pixels(), api.Recorded(p.Result.Settings))
}

func (r *request) write(img image.Image, s *picture.Settings) ([]byte, error) {
	var b bytes.Buffer
	var err error
	switch {
	case r.format == outputPNG:
		err = picture.Encode(&b, picture.PNG, img, s)
	case r.format == outputWebP:
		err = picture.Encode(&b, picture.WebP, img, s)
	case r.compression == 0:
		err = picture.Encode(&b, picture.JPEG, img, s)
	default:
		err = picture.EncodeJPEG(&b, img, s, r.compression)
	}
	return b.Bytes(), err
}

// backgroundOf returns the background of images in OpenAI's words.
func (r *request) backgroundOf(pictures []*engine.Picture) string {
	for _, p := range pictures {
		if p.Result.Transparent != nil && r.format != outputJPEG {
			return transparent
		}
	}
	return opaque
}

// sizeText returns the size of an image as OpenAI writes it.
func sizeText(img image.Image) string {
	size := img.Bounds().Size()
	return strconv.Itoa(size.X) + "x" + strconv.Itoa(size.Y)
}

// answer returns the answer to a request that is not streamed, OpenAI's ImagesResponse. The model and the seeds are
// additions.
func (h *Handler) answer(r *http.Request, req *request, pictures []*engine.Picture) (any, error) {
	data, size := []any{}, ""
	for _, p := range pictures {
		file, err := req.encode(p)
		if err != nil {
			return nil, err
		}
		size = sizeText(p.Result.Image)
		one := map[string]any{"seed": p.Seed}
		if req.url {
			name := engine.NewID() + "." + req.format
			h.files.Put(name, file)
			one["url"] = h.baseURL(r) + "/v1/files/" + name
		} else {
			one["b64_json"] = base64.StdEncoding.EncodeToString(file)
		}
		data = append(data, one)
	}
	return map[string]any{
		"created": h.config.Now().Unix(), "background": req.backgroundOf(pictures), "data": data, "output_format": req.format,
		"quality": req.quality, "size": size, "usage": req.usageOf(pictures), "model": req.job.Model,
	}, nil
}

// baseURL returns the beginning of the URLs of a request's server.
func (h *Handler) baseURL(r *http.Request) string {
	switch {
	case h.config.BaseURL != "":
		return h.config.BaseURL
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
