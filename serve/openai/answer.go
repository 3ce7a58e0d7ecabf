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

// An answer is OpenAI's ImagesResponse. Model and the seeds are additions.
type answer struct {
	Created      int64       `json:"created"`
	Background   string      `json:"background"`
	Data         []imageData `json:"data"`
	OutputFormat string      `json:"output_format"`
	Quality      string      `json:"quality"`
	Size         string      `json:"size"`
	Usage        usage       `json:"usage"`
	Model        string      `json:"model"`
}

type imageData struct {
	B64JSON string `json:"b64_json,omitempty"`
	URL     string `json:"url,omitempty"`
	Seed    uint64 `json:"seed"`
}

type usage struct {
	InputTokens  int          `json:"input_tokens"`
	InputDetails inputDetails `json:"input_tokens_details"`
	OutputTokens int          `json:"output_tokens"`
	TotalTokens  int          `json:"total_tokens"`
}

type inputDetails struct {
	ImageTokens int `json:"image_tokens"`
	TextTokens  int `json:"text_tokens"`
}

// imageTokens returns the number of tokens of an image: one for each 16x16 pixels.
func imageTokens(width, height int) int {
	const side = 16
	return (width + side - 1) / side * ((height + side - 1) / side)
}

// usageOf counts the tokens of some images of a request. They share its input.
func (r *request) usageOf(pictures []*engine.Picture) usage {
	var u usage
	for _, p := range pictures {
		u.InputDetails.TextTokens = p.Result.PromptTokens
		u.OutputTokens += imageTokens(p.Result.Image.Bounds().Dx(), p.Result.Image.Bounds().Dy())
	}
	u.InputDetails.ImageTokens = r.inputUnits
	u.InputTokens = u.InputDetails.TextTokens + u.InputDetails.ImageTokens
	u.TotalTokens = u.InputTokens + u.OutputTokens
	return u
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

// answer returns the answer to a request that is not streamed.
func (h *Handler) answer(r *http.Request, req *request, pictures []*engine.Picture) (*answer, error) {
	a := &answer{
		Created: h.config.Now().Unix(), Background: req.backgroundOf(pictures), Data: []imageData{}, OutputFormat: req.format,
		Quality: req.quality, Usage: req.usageOf(pictures), Model: req.job.Model,
	}
	for _, p := range pictures {
		data, err := req.encode(p)
		if err != nil {
			return nil, err
		}
		a.Size = sizeText(p.Result.Image)
		one := imageData{Seed: p.Seed}
		if req.url {
			name := engine.NewID() + "." + req.format
			h.files.Put(name, data)
			one.URL = h.baseURL(r) + "/v1/files/" + name
		} else {
			one.B64JSON = base64.StdEncoding.EncodeToString(data)
		}
		a.Data = append(a.Data, one)
	}
	return a, nil
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
