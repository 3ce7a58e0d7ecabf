package family

import (
	"cmp"
	"fmt"
	"image"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textgen"
	"github.com/gomflux/gomflux/transformer"
)

// QwenImage21 is the family of Qwen-Image-2.1.
var QwenImage21 = &Family{
	Name: "Qwen-Image-2.1",
	Pipelines: []*Class{{Name: "QwenImage21Pipeline", Configure: configureQwenImage21, NeedsNegativePrompt: true,
		References: anyNumber,
		Components: []Member{
			{Folder: "processor", Class: component.Qwen3VLProcessor},
			{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
			{Folder: "text_encoder", Class: component.Qwen3VLForConditionalGeneration},
			{Folder: "transformer", Class: component.QwenImage21Transformer2DModel},
			{Folder: "vae", Class: component.AutoencoderKLQwenImage21},
		}}},
	Models: publish(
		Model{
			Class: "QwenImage21Pipeline", Licence: qwenResearch, Processor: qwen3VLProcessor,
			// the autoencoder has the defaults of its class
			Configs: map[string]map[string]any{"text_encoder": qwen3VLOf8B, "transformer": {"out_channels": 64}},
		},
		Model{
			Name: "qwen-image-2.1", Aliases: []string{"qwen-2.1", "qwen-image-21"}, Repo: "Qwen/Qwen-Image-2.1",
			Defaults: defaults(40, 1), Scheduler: qwenShift,
		},
		Model{
			Name: "qwen-image-2.1-turbo", Aliases: []string{"qwen-2.1-turbo", "qwen-image-21-turbo", "qwen-image-turbo-21"},
			Repo: "Qwen/Qwen-Image-2.1-Turbo", Defaults: defaults(8, 1), Scheduler: constantShift(1), FileNames: []string{"turbo"},
			Index: map[string]any{
				"sample_sigmas": []float64{1, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568},
			},
		},
	),
	Rewriter: &Rewriter{ // its makers' own model for this, a fine-tuned Qwen3.5, can be named instead
		Generate: ownGenerate, Edit: ownEdit, Source: ownRewriter.Source,
		Sampling: textgen.Sampling{Temperature: 1, TopK: 20, TopP: 0.95, PresencePenalty: 1.5}, EditPresence: new(float64), MaxTokens: 4096,
	},
	Help: Help{
		Guidance: "1 or less disables it for Qwen-Image-2.1, which is made for that",
		Editors:  "Qwen-Image-2.1",
		Editing: `Qwen-Image-2.1 takes one or several reference images of any size. Each is
resized to about a megapixel, with sides that are multiples of 32. Prompts refer
to them as image 1, image 2 and so on. Without --height and --width the result
has the size of the last image after that.`,
	},
}

// qwenResearch is the licence of Qwen-Image-2.1.
var qwenResearch = Licence{
	Name: "Qwen Research License", ID: "qwen-research", URL: "LICENSE",
	Commercial: CommercialForbidden, Terms: noCommercialUse,
}

// qwenImage21 is diffusers' QwenImage21Pipeline, which generates images and edits them.
type qwenImage21 struct {
	defaultMethods
	latentTokens
	qwenReferences
	textEncoder *textenc.Qwen3VL
	transformer *transformer.QwenImage21
	dtype       mlx.Dtype
	sigmas      ownSigmas
}

const qwen21System = "Comprehend and analyze the provided prompt."

func configureQwenImage21(l *Configs) (Pipeline, Networks) {
	text, c := textenc.DefaultQwen3VLConfig(), transformer.DefaultQwenImage21Config()
	own := struct {
		OutputResolution int       `json:"output_resolution"`
		SampleSigmas     ownSigmas `json:"sample_sigmas"`
	}{OutputResolution: 1024}
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Fits("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize, "context_in_dim", c.ContextInDim)
	l.Index(&own)
	if own.OutputResolution < 32 || own.OutputResolution > 16384 {
		l.CheckIndex(fmt.Errorf("output_resolution %d: expected a side in pixels", own.OutputResolution))
	}
	l.CheckIndex(own.SampleSigmas.validate("sample_sigmas"))
	if l.Failed() {
		return nil, nil
	}
	q := &qwenImage21{dtype: l.Dtype, sigmas: own.SampleSigmas, latentTokens: latentTokens{unpatched{c.InChannels}}}
	q.textEncoder, q.blind, l.err = l.Qwen3VLWithVision("text_encoder", text, []int{textenc.LastBeforeNorm})
	q.transformer = transformer.NewQwenImage21(c)
	if l.Failed() {
		return nil, nil
	}
	q.show(l, &q.textEncoder.Config, component.Qwen3VLVision(q.textEncoder), own.OutputResolution*own.OutputResolution)
	return q, Networks{"text_encoder": q.textEncoder, "transformer": q.transformer}
}

// Defaults has no guidance, which the models are not made for.
func (q *qwenImage21) Defaults() Defaults { return defaults(cmp.Or(len(q.sigmas), 40), 1) }

// Sigmas returns the model's own noise schedule.
func (q *qwenImage21) Sigmas(steps int) []float32 { return q.sigmas.Sigmas(steps) }

// Multiple is 2: the text encoder sees a reference image in patches of 2×2 latents.
func (q *qwenImage21) Multiple() int { return 2 }

func (q *qwenImage21) Fits(h, w, tokens int) error { return q.transformer.Fits(h, w, tokens) }

// CacheSize returns the size of the KV cache of prompt and reference images.
func (q *qwenImage21) CacheSize(references, text int) int64 {
	c := q.transformer.Config
	if !c.CausalCondition {
		return 0
	}
	return int64(2*c.NumLayers) * int64(references+text) * int64(c.NumAttentionHeads*c.AttentionHeadDim)
}

// ConditionsOnce reports whether the prompt and the reference images do not see the latents.
func (q *qwenImage21) ConditionsOnce() bool { return q.transformer.Config.CausalCondition }

// PlacesReferences implements ReferencePlacer.
func (q *qwenImage21) PlacesReferences() {}

func (q *qwenImage21) PromptEncodings(references []image.Image) []PromptEncoding {
	var images []string
	for i := range references {
		images = append(images, fmt.Sprintf("<image%d><|vision_start|><|image_pad|><|vision_end|>", i+1))
	}
	w := chat(strings.Join(images, " "), "").withSystem(qwen21System)
	w.empty = " "
	e := q.encoding(references, w, 2, func(ids []int32, images []textenc.VisionInput) *mlx.Array {
		x := q.textEncoder.ForwardImages(ids, images)
		return x.Slice(1, qwen21Prefix(ids), len(ids)).Squeeze(0)
	})
	e.Tokenizer, e.NeedsIDs = "processor", true
	withImages := e.Images
	e.Images = func(ids []int32) ([]int32, error) { // after a system's message of one token: see qwen21Prefix
		return withImages(slices.Insert(slices.Clone(ids), 0, ids[0]))
	}
	return []PromptEncoding{e}
}

// qwen21Prefix returns the number of tokens of the system's message, which the transformer does not
// get: of those before the second token that begins a message.
func qwen21Prefix(ids []int32) int {
	if len(ids) < 2 {
		return 0
	}
	return 1 + max(0, slices.Index(ids[1:], ids[0]))
}

// CheckReference refuses images that the text encoder would see in another size than the transformer.
func (q *qwenImage21) CheckReference(size image.Point) error {
	if err := q.qwenReferences.CheckReference(size); err != nil || q.processor == nil {
		return err
	}
	fit := q.resized(size)
	if seen, _ := q.size(size); seen != fit {
		return fmt.Errorf("has %dx%d pixels, which are %dx%d for the autoencoder and %dx%d for the text encoder, by the sizes "+
			"that its image processor allows", size.X, size.Y, fit.X, fit.Y, seen.X, seen.Y)
	}
	return nil
}

func (q *qwenImage21) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	embeds := c.Text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(q.pack)
	ids := c.IDs[0][qwen21Prefix(c.IDs[0]):]
	if len(ids) != embeds.Dim(1) {
		return nil, errs.Requestf("prompt embeddings of %d tokens, and the prompt has %d after the system's message",
			embeds.Dim(1), len(ids))
	}
	slots := make([]bool, len(ids))
	for i, id := range ids {
		slots[i] = len(sizes) > 0 && id == int32(q.textEncoder.Config.ImageTokenID)
	}
	s, err := q.transformer.Sequence(h, w, slots, sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	in := transformer.Inputs{Text: embeds, References: references}
	return kvPredictor(c, compile, q.transformer, s, in, q.dtype, q.transformer.Config.CausalCondition), nil
}
