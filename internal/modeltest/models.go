package modeltest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A Model is a small model of models/testdata, with the attributes that tests need to run it.
// Tests of what holds for every model range over [Models], so that a new family is a row there.
type Model struct {
	Name       string  // of its folder
	Variable   string  // of the scripts of the command (cmd/gomflux/testdata/script), which has its folder
	Guidance   float64 // scale of a run with all the guidance that the model has
	References int     // reference images of a run
	Fills      bool    // every run has an image with a mask
	Layers     int     // into which a run splits its reference image, 0 for none
	Variant    bool    // its networks are those of another row: tests that take long leave it out
	Padded     bool    // its transformer gets prompts that are padded to their limit
	Rows       int     // rows of the text that its transformer gets at least
	Seen       int     // tokens of the prompt for each reference image of 80x64 pixels
	Single     bool    // there are single files of such models, in their makers' layout
	Left       string  // what the names of tensors begin with that saving in mflux's layout leaves out, separated by spaces

	// configs are by component what replaces keys of its config to make matrices wide enough to be
	// quantized; see [Wide].
	configs map[string]string
}

// Models lists one model of every pipeline class and every way of its networks to be run.
var Models = []Model{
	{Name: "zimage-ordinary", Variable: "MODEL", Guidance: 3, Single: true},
	{Name: "zimage-small", Guidance: 3, Variant: true, configs: map[string]string{
		"transformer":  `{"dim": 128, "n_heads": 4, "n_kv_heads": 4, "axes_dims": [8, 12, 12], "cap_feat_dim": 128}`,
		"text_encoder": `{"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}`,
	}},
	{Name: "flux1-schnell-ordinary", Variable: "SCHNELL_MODEL", Padded: true, Single: true, Variant: true},
	{Name: "flux1-dev-small", Variable: "FLUX_MODEL", Guidance: 3.5, Padded: true, Single: true, configs: map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], ` +
			`"joint_attention_dim": 128, "pooled_projection_dim": 64}`,
		"text_encoder":   `{"hidden_size": 64, "intermediate_size": 128, "projection_dim": 64}`,
		"text_encoder_2": `{"d_model": 128, "d_ff": 128, "d_kv": 32}`,
	}},
	{Name: "flux1-kontext", Variable: "KONTEXT_MODEL", Guidance: 2.5, References: 1, Padded: true},
	{Name: "flux1-fill", Variable: "FILL_MODEL", Guidance: 30, Fills: true, Padded: true, configs: map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], ` +
			`"joint_attention_dim": 128, "pooled_projection_dim": 64}`,
		"text_encoder":   `{"hidden_size": 64, "intermediate_size": 128, "projection_dim": 64, "num_attention_heads": 2}`,
		"text_encoder_2": `{"d_model": 128, "d_ff": 128, "d_kv": 32}`,
	}},
	{Name: "flux2-klein", Variable: "EDITOR_MODEL", Guidance: 1, References: 2, Padded: true, Single: true,
		Left: "vae/bn.num_batches_tracked", Variant: true},
	{Name: "flux2-klein-base", Variable: "BASE_MODEL", Guidance: 4, Padded: true,
		Left: "vae/bn.num_batches_tracked", configs: map[string]string{
			"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 8, 8, 8], ` +
				`"joint_attention_dim": 384}`,
			"text_encoder": `{"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}`,
		}},
	{Name: "flux2-klein-kv", Guidance: 1, References: 1, Padded: true, Left: "vae/bn.num_batches_tracked"},
	{Name: "flux2-dev", Variable: "FLUX2_DEV_MODEL", Guidance: 2.5, Padded: true, Single: true,
		Left: "vae/bn.num_batches_tracked text_encoder/vision_tower. text_encoder/multi_modal_projector.", configs: map[string]string{
			"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 8, 8, 8], ` +
				`"joint_attention_dim": 384}`,
			"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}}`,
		}},
	{Name: "flux3-klein", Variable: "FLUX3_MODEL", Guidance: 1, References: 1, Single: true,
		Left: "vae/bn.num_batches_tracked text_encoder/model.visual. text_encoder/lm_head.weight", Variant: true},
	{Name: "flux3-klein-base", Variable: "FLUX3_BASE_MODEL", Guidance: 4, References: 2,
		Left: "vae/bn.num_batches_tracked text_encoder/model.visual. text_encoder/lm_head.weight", configs: map[string]string{
			"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 8, 8, 8], ` +
				`"joint_attention_dim": 384}`,
			"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32},
			"vision_config": {"out_hidden_size": 128}}`,
		}},
	{Name: "ernie-image", Variable: "ERNIE_MODEL", Guidance: 3, Single: true,
		Left: "vae/bn.num_batches_tracked text_encoder/vision_tower. text_encoder/multi_modal_projector."},
	{Name: "ernie-image-small", Guidance: 3, Variant: true,
		Left: "vae/bn.num_batches_tracked text_encoder/vision_tower. text_encoder/multi_modal_projector.", configs: map[string]string{
			"transformer": `{"hidden_size": 128, "num_attention_heads": 4, "rope_axes_dim": [8, 12, 12], "ffn_hidden_size": 128, ` +
				`"text_in_dim": 64}`,
			"text_encoder": `{"text_config": {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}}`,
		}},
	{Name: "qwen-image-ordinary", Variable: "QWEN_MODEL", Guidance: 4, Single: true, Left: "text_encoder/lm_head.weight"},
	{Name: "qwen-image-small", Guidance: 4, Left: "text_encoder/lm_head.weight", Variant: true, configs: map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
			"rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
	{Name: "qwen-edit", Variable: "QWEN_EDIT_MODEL", Guidance: 4, References: 1, Seen: 6,
		Left: "text_encoder/lm_head.weight", Variant: true},
	{Name: "qwen-edit-plus", Variable: "QWEN_PLUS_MODEL", Guidance: 1, References: 2, Seen: 18,
		Left: "text_encoder/lm_head.weight", configs: map[string]string{
			"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12],
				"joint_attention_dim": 128}`,
			"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
			"rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
		}},
	{Name: "qwen-layered", Variable: "LAYERED_MODEL", Guidance: 3, References: 1, Layers: 2,
		Left: "text_encoder/lm_head.weight", configs: map[string]string{
			"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12],
				"joint_attention_dim": 128}`,
			"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
			"rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
		}},
	{Name: "qwen-image-21", Variable: "QWEN21_MODEL", Guidance: 3, configs: map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "context_in_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32},
			"vision_config": {"hidden_size": 64, "num_heads": 2, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
	{Name: "qwen-image-21-turbo", Variable: "QWEN21_TURBO_MODEL", Guidance: 1, References: 1, Seen: 2},
	{Name: "krea-2", Variable: "KREA_MODEL", Single: true, Left: "text_encoder/visual.", Variant: true},
	{Name: "anima", Variable: "ANIMA_MODEL", Guidance: 3, Rows: 30, Single: true, configs: map[string]string{
		"transformer":      `{"attention_head_dim": 64, "num_attention_heads": 2, "text_embed_dim": 128, "adaln_lora_dim": 64}`,
		"text_conditioner": `{"source_dim": 128, "target_dim": 128, "model_dim": 128}`,
		"text_encoder":     `{"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}`,
	}},
	{Name: "krea-2-raw", Variable: "KREA_RAW_MODEL", Guidance: 3, Left: "text_encoder/visual.", configs: map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 384,
			"axes_dims_rope": [8, 12, 12], "text_hidden_dim": 128, "text_num_attention_heads": 4, "text_intermediate_size": 256}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32},
			"vision_config": {"out_hidden_size": 128}}`,
	}},
}

// Singles returns the models of which there are single files in their makers' layout.
func Singles() []Model {
	return slices.DeleteFunc(slices.Clone(Models), func(m Model) bool { return !m.Single })
}

// Networks returns the models other than variants.
func Networks() []Model {
	return slices.DeleteFunc(slices.Clone(Models), func(m Model) bool { return m.Variant })
}

// A Dump is a dump of the reference in models/testdata that records a whole run.
type Dump struct {
	Name    string // of its folder
	Compute string // dtype
}

// Dumps returns all dumps of runs in models/testdata.
func Dumps(t testing.TB) (dumps []Dump) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(Folder(t, "x"))), "*", "dump", "settings.json"))
	if err != nil || len(files) < 3*len(Models) {
		t.Fatalf("%d dumps, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		d := Dump{Name: filepath.Base(filepath.Dir(filepath.Dir(file)))}
		if err == nil {
			err = json.Unmarshal(text, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
	return dumps
}
