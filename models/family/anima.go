package family

import (
	"errors"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// animaLicence is the licence of Anima.
var animaLicence = Licence{
	Name: "CircleStone Labs Non-Commercial License", ID: "circlestone-labs-non-commercial-license", URL: "LICENSE.md",
	Commercial: CommercialForbidden, Terms: noCommercialUse,
}

// Anima is the family of Anima.
var Anima = &Family{
	Name: "Anima",
	Pipelines: []*Class{{Name: "AnimaModularPipeline", Configure: configureAnima, Components: []Member{
		{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
		{Folder: "t5_tokenizer", Class: component.T5TokenizerFast, MFluxFolder: "tokenizer_2"},
		{Folder: "text_conditioner", Class: component.AnimaTextConditioner, MFluxFolder: component.Transformers},
		{Folder: "text_encoder", Class: component.Qwen3Model, Dense: true}, // as in mflux: 4 bits garble lettering
		{Folder: "tokenizer", Class: component.Qwen2Tokenizer},
		{Folder: "transformer", Class: component.CosmosTransformer3DModel},
		{Folder: "vae", Class: component.AutoencoderKLQwenImage},
	}}},
	Models: publish(Model{Class: "AnimaModularPipeline"}, Model{
		Name: "anima", Aliases: []string{"anima-base"}, Repo: "circlestone-labs/Anima-Base-v1.0-Diffusers", Defaults: defaults(30, 4),
		Licence: animaLicence, Scheduler: constantShift(3), Configs: map[string]map[string]any{
			"text_encoder": qwen3Of06B,
			"transformer": {
				"num_attention_heads": 16, "rope_scale": []float64{1, 4, 4}, "extra_pos_embed_type": nil,
			},
		},
	}),
	Help: Help{Guidance: "1 disables it for Anima, as its turbo LoRA needs it"},
}

// anima is diffusers' AnimaModularPipeline.
type anima struct {
	defaultMethods
	unpatched
	textEncoder *textenc.Qwen3
	conditioner *textenc.AnimaTextConditioner
	transformer *transformer.Cosmos
	dtype       mlx.Dtype
}

func configureAnima(l *Configs) (Pipeline, Networks) {
	text, conditioner, c := textenc.DefaultQwen3Config(), textenc.DefaultAnimaConfig(), transformer.DefaultCosmosConfig()
	l.Read("text_encoder", &text)
	l.Read("text_conditioner", &conditioner)
	l.Read("transformer", &c)
	l.Fits("text_conditioner", "the text conditioner's target_dim", conditioner.TargetDim, "text_embed_dim", c.TextEmbedDim)
	if !l.Absent["text_encoder"] && !l.Absent["text_conditioner"] {
		l.Check("text_conditioner/"+component.ConfigFile,
			component.SameSize("the text encoder's hidden_size", text.HiddenSize, "source_dim", conditioner.SourceDim))
	}
	if l.Failed() {
		return nil, nil
	}
	a := &anima{dtype: l.Dtype, unpatched: unpatched{c.InChannels}}
	a.textEncoder = textenc.NewQwen3(text, []int{text.NumHiddenLayers}, a.dtype)
	a.conditioner = textenc.NewAnimaTextConditioner(conditioner, a.dtype)
	a.transformer = transformer.NewCosmos(c)
	return a, Networks{"text_encoder": a.textEncoder, "text_conditioner": a.conditioner, "transformer": a.transformer}
}

func (a *anima) Defaults() Defaults { return defaults(50, 4) }

// PromptEncodings returns Qwen3, and the conditioner, which takes T5's tokens and the output of Qwen3. An
// empty prompt has no tokens of Qwen3: it is zeros.
func (a *anima) PromptEncodings([]image.Image) []PromptEncoding {
	states := PromptEncoding{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "states", Shape: []int{-1, -1},
		Tokenize: animaTokens,
		EncodeMasked: func(ids []int32, first, end int) *mlx.Array {
			if first == end {
				return mlx.Zeros(a.dtype, 1, a.textEncoder.Config.HiddenSize)
			}
			return a.textEncoder.Forward(ids).Squeeze(0)
		},
	}
	return []PromptEncoding{states, {
		Tokenizer: "t5_tokenizer", Encoder: "text_conditioner", IDs: "input_ids_2", Embeds: "embeds", Shape: []int{-1, -1},
		Tokenize: template{}.special, After: &states, LeastRows: a.conditioner.Config.MinSequenceLength,
		EncodeAfter: func(ids []int32, states *mlx.Array) *mlx.Array {
			return a.conditioner.Forward(states.ExpandDims(0), ids).Squeeze(0)
		},
	}}
}

// animaTokens tokenizes a prompt for Qwen3: an empty one is a pad.
func animaTokens(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
	tokens, err := template{}.cut(t, prompt, limit)
	if err != nil || len(tokens.IDs) > 0 {
		return tokens, err
	}
	pad, ok := t.PadID()
	if !ok {
		return tokens, errors.New("the tokenizer has no pad token")
	}
	return Tokens{IDs: []int32{pad}, Total: 1}, nil
}

func (a *anima) Multiple() int { return 2 }

func (a *anima) Fits(h, w, _ int) error { return a.transformer.Fits(h, w) }

// Guidance reports whether the scale has an effect: also below 1, as in ClassifierFreeGuidance.
func (a *anima) Guidance(g Guidance) (bool, error) { return g.Scale != 1, nil }

func (a *anima) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	s, err := a.transformer.Sequence(h, w)
	if err != nil {
		return nil, errs.Request(err)
	}
	in := transformer.Inputs{Text: c.Text[1].ExpandDims(0)}
	return predictor(newForward(c, compile, s, a.transformer.Pass), in, a.dtype, byTime(a.transformer)), nil
}
