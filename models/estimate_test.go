package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/inpaint"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// descriptions are the sources of the memory model's constants: the classes, and the default for
// classes without constants.
var descriptions = []struct {
	name  string
	stack func(component.Component) component.BlockMemory // of LoadOptions
	limit float64                                         // of errors, 0 for a test's own
}{
	{name: "class"},
	{"default", func(c component.Component) component.BlockMemory { return component.DefaultBlockMemory(c.Model) }, 0.25},
}

// settled frees unused arrays and returns the memory in use, in bytes.
func settled() int {
	runtime.GC()
	mlx.StopPoint()
	mlx.ClearCache()
	return mlx.ActiveMemory()
}

// TestEstimate compares estimates with what MLX measures on the CPU, with the constants of the
// classes and with the defaults. GPUs were measured with large models (docs/performance.md).
func TestEstimate(t *testing.T) {
	tests := []struct {
		folder        string
		width, height int
		batch         int
		guidance      float64
		references    []image.Point
		dtype         mlx.Dtype
		quantize      string
		lowRAM        bool
		masked        bool
	}{
		{folder: "flux1-dev-small", width: 128, height: 128},
		{folder: "flux1-dev-small", width: 128, height: 128, masked: true, batch: 3},
		{folder: "zimage-small", width: 256, height: 128, masked: true, lowRAM: true},
		{folder: "flux2-klein-base", width: 128, height: 128, masked: true, references: []image.Point{{96, 96}}},
		{folder: "flux1-dev-small", width: 256, height: 192, lowRAM: true},
		{folder: "flux1-dev-small", width: 128, height: 96, batch: 3},
		{folder: "flux1-fill", width: 128, height: 128, guidance: 30},
		{folder: "flux1-fill", width: 256, height: 192, guidance: 30, lowRAM: true},
		{folder: "flux1-fill", width: 128, height: 96, guidance: 30, batch: 3, quantize: "8"},
		{folder: "flux2-klein-base", width: 128, height: 128, guidance: 3},
		{folder: "flux2-klein-base", width: 192, height: 256, guidance: 1, lowRAM: true},
		{folder: "flux2-klein-base", width: 128, height: 128, references: []image.Point{{128, 64}, {96, 96}}},
		{folder: "flux3-klein-base", width: 192, height: 128, guidance: 3, references: []image.Point{{128, 64}, {96, 96}}},
		{folder: "zimage-small", width: 256, height: 128},
		{folder: "zimage-small", width: 256, height: 256, guidance: 4, quantize: "4"},
		{folder: "qwen-image-small", width: 256, height: 128},
		{folder: "qwen-image-small", width: 256, height: 256, guidance: 4, lowRAM: true},
		{folder: "krea-2-raw", width: 256, height: 128},
		{folder: "krea-2-raw", width: 256, height: 256, guidance: 4, lowRAM: true},
		{folder: "qwen-image-21", width: 128, height: 128, batch: 8},
		{folder: "qwen-image-21", width: 128, height: 128, batch: 4, guidance: 4, lowRAM: true, references: []image.Point{{64, 96}}},
		{folder: "qwen-image-21", width: 128, height: 128, batch: 4, references: []image.Point{{128, 64}}},
		{folder: "qwen-edit-plus", width: 128, height: 128, batch: 8, references: []image.Point{{128, 64}}},
		{folder: "qwen-layered", width: 128, height: 64, batch: 2, references: []image.Point{{128, 64}}},
	}
	for _, test := range randtest.Some(2, tests) {
		t.Run(fmt.Sprintf("%s/%dx%d", test.folder, test.width, test.height), func(t *testing.T) {
			dir := os.DirFS(modeltest.Wide(t, test.folder))
			mlxtest.Do(t, func() {
				if mlx.CurrentDevice() != mlx.CPU {
					t.Skip("a GPU is done with small models before it has much to do")
				}
				before := settled()
				o := LoadOptions{LowRAM: test.lowRAM}
				if test.quantize != "" {
					q, err := component.ParseQuantization(test.quantize, 0)
					if err != nil {
						t.Fatal(err)
					}
					o.Quantize = q
				}
				p, err := Load(dir, o)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				r := Request{Prompt: "a red hat", Width: test.width, Height: test.height, Steps: 2, Guidance: test.guidance,
					MaxSequenceLength: 256}
				for _, size := range test.references {
					r.References = append(r.References, image.NewRGBA(image.Rectangle{Max: size}))
				}
				if test.masked {
					photo := image.NewRGBA(image.Rect(0, 0, test.width+37, test.height+9))
					mask := image.NewGray(photo.Rect)
					draw.Draw(mask, image.Rect(20, 20, 80, 80), image.White, image.Point{}, draw.Src)
					if r.Inpaint, err = inpaint.New(photo, mask, inpaint.Options{}); err != nil {
						t.Fatal(err)
					}
				} else {
					r.Inpaint = p.LeastInpaint(image.NewRGBA(image.Rect(0, 0, test.width, test.height)))
				}
				peaks := map[Phase]int{}
				phase := PhaseEncode
				r.Progress = func(pr Progress) {
					peaks[phase] = max(peaks[phase], mlx.PeakMemory()-before)
					mlx.ResetPeakMemory()
					if pr.Phase != PhaseLoad {
						phase = pr.Phase
					}
				}
				batch := max(1, test.batch)
				run, err := p.Prepare(r, batch)
				if err != nil {
					t.Fatal(err)
				}
				e := run.Estimate()
				peak, off := 0, math.Inf(1)
				for range 6 { // on a busy machine MLX takes less in advance, sometimes
					p.promptCache, p.inputCache = nil, nil
					if _, err := run.Generate(make([]uint64, batch)); err != nil {
						t.Fatal(err)
					}
					r.Progress(Progress{Phase: phase})
					for _, n := range peaks {
						peak = max(peak, n)
					}
					if off = float64(e.Peak())/float64(peak) - 1; math.Abs(off) < 0.1 {
						break
					}
				}
				t.Logf("peaks %v, estimated %d, %d and %d", peaks, e.Encode, e.Step, e.Decode)
				if most := 0.2; !(off > -0.1 && off < most) { // a tenth, but where it always is busy
					t.Errorf("a peak of %d bytes, estimated %d, which is off by %.2f", peak, e.Peak(), off)
				}
				for _, by := range descriptions[1:] { // of steps too, where decoding takes most
					p.blockMemory = by.stack
					e := run.Estimate()
					off := float64(e.Peak())/float64(peak) - 1
					ofStep := float64(e.Step)/float64(peaks[PhaseStep]) - 1
					t.Logf("by its %s: estimated %d, %d and %d, off by %+.2f, of a step %+.2f", by.name, e.Encode, e.Step,
						e.Decode, off, ofStep)
					if !(math.Abs(off) < by.limit && math.Abs(ofStep) < by.limit) {
						t.Errorf("a peak of %d bytes, by its %s estimated %d, which is off by %.2f, of a step by %.2f", peak,
							by.name, e.Peak(), off, ofStep)
					}
				}
			})
		})
	}
}

// TestDecodePeak checks that the conversion to pixels, which estimates do not count, adds nothing to the
// peak of the decoder.
func TestDecodePeak(t *testing.T) {
	const side = 256
	for _, folder := range []string{"flux1-dev-small", "qwen-image-21"} {
		dir := os.DirFS(modeltest.Wide(t, folder))
		mlxtest.Do(t, func() {
			if mlx.CurrentDevice() != mlx.CPU {
				t.Skip("a GPU's peaks depend on its speed")
			}
			p, err := Load(dir, LoadOptions{Dtype: new(mlx.Float32)})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			h, w := p.latentSize(side, side)
			l := Latents{Shape: p.latentShape(h, w)}
			l.Data = make([]float32, l.size())
			values := side * side * p.vae.ImageChannels()
			alone, all, limit := 0, 0, 0
			for range 6 { // on a busy machine MLX takes less in advance, sometimes
				before := settled()
				mlx.ResetPeakMemory()
				mlx.WithScope(func() { mlx.Eval(p.vae.Decode(mlx.Zeros(p.dtype, append([]int{1}, p.vae.Unscaled(h, w)...)...))) })
				alone = max(alone, mlx.PeakMemory()-before)
				before = settled()
				mlx.ResetPeakMemory()
				if _, err := p.Decode(l, false); err != nil {
					t.Fatal(err)
				}
				all, limit = mlx.PeakMemory()-before, alone+4*values // a copy in float32
				if all < limit {
					break
				}
			}
			t.Logf("%s: %d bytes, %d of the decoder alone", folder, all, alone)
			if all >= limit {
				t.Errorf("%s: a peak of %d bytes, of the decoder alone %d, expected less than %d", folder, all, alone, limit)
			}
		})
	}
}

// prepared returns the run of a request.
func prepared(t *testing.T, p *Pipeline, r Request, batch int) *Run {
	t.Helper()
	run, err := p.Prepare(r, batch)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func estimated(t *testing.T, p *Pipeline, r Request) Estimate {
	t.Helper()
	return prepared(t, p, r, 1).Estimate()
}

// TestCheckFit loads a model with less and less memory: at some point its components are loaded one
// at a time, and finally a warning suggests settings, which do fit.
func TestCheckFit(t *testing.T) {
	dir := os.DirFS(modeltest.Wide(t, "flux2-klein-base"))
	mlxtest.Do(t, func() {
		run := Request{Prompt: "a red hat", Width: 128, Height: 128, Steps: 2, Guidance: 1, MaxSequenceLength: 128}
		load := func(memory int64, o LoadOptions) (p *Pipeline, warnings []string) {
			o.Dtype = new(mlx.Float32)
			o.memory, o.Warn = memory, func(s string) { warnings = append(warnings, s) }
			o.Requests = func(*Pipeline) []Request {
				smaller := run
				smaller.Width, smaller.Height = 32, 32
				return []Request{smaller, run}
			}
			p, err := Load(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			return p, warnings
		}
		const plenty = 1 << 40
		p, warnings := load(plenty, LoadOptions{})
		if p.residency.lowRAM || p.residency.decodeAlone || len(warnings) > 0 {
			t.Errorf("with much memory: %v, %v, warnings %q", p.residency.lowRAM, p.residency.decodeAlone, warnings)
		}
		all := estimated(t, p, run)
		p, warnings = load(all.Peak()-1, LoadOptions{})
		if !p.residency.lowRAM || len(warnings) > 0 {
			t.Errorf("with too little for all parts: %v, warnings %q", p.residency.lowRAM, warnings)
		}
		low := estimated(t, p, run)
		if !(low.Peak() < all.Peak()) {
			t.Errorf("%d bytes with one part at a time, %d with all", low.Peak(), all.Peak())
		}

		p, warnings = load(low.Step-1, LoadOptions{})
		if !p.residency.lowRAM || !p.residency.decodeAlone || len(warnings) != 1 {
			t.Fatalf("with too little for one part: %v, %v, warnings %q", p.residency.lowRAM, p.residency.decodeAlone, warnings)
		}
		mlxtest.Contains(t, warnings[0], "an image of 128x128 in float32 needs about 1",
			" MB of memory, even with one component of the model in memory at a time, and 1", " MB are free",
			"; try -q 8 (1", ", or -q 4 (1", ", or --width 96 --height 96 (")
		q, err := component.ParseQuantization("8", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, warnings := load(low.Step-1, LoadOptions{Quantize: q, LowRAM: true}); len(warnings) > 0 {
			t.Errorf("quantized: %q", warnings)
		}
		_, warnings = load(low.Step-1, LoadOptions{Batch: 4})
		if len(warnings) != 1 {
			t.Fatalf("for a batch: %q", warnings)
		}
		mlxtest.Contains(t, warnings[0], "a batch of 4 images of 128x128 in float32 needs about ")
		run.Width, run.Height = 96, 96
		if _, warnings := load(low.Step-1, LoadOptions{}); len(warnings) > 0 {
			t.Errorf("for a smaller picture: %q", warnings)
		}
	})
}

// TestEstimateModel estimates without reading weights, for the defaults and for a request.
func TestEstimateModel(t *testing.T) {
	dir := os.DirFS(modeltest.Wide(t, "qwen-image-small"))
	mlxtest.Do(t, func() {
		before := settled()
		estimate := func(o LoadOptions) Estimate {
			e, _, free, err := EstimateModel(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			if free == 0 {
				t.Error("nothing is free")
			}
			return e
		}
		owned := estimate(LoadOptions{})
		_, asLow, _, err := EstimateModel(dir, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if after := settled(); after > before+1<<16 {
			t.Errorf("%d bytes are in memory, %d before", after, before)
		}
		small := estimate(LoadOptions{Requests: func(p *Pipeline) []Request {
			r := p.defaultRequest()
			r.Width, r.Height = 64, 64
			return []Request{r}
		}})
		q, err := component.ParseQuantization("4", 0)
		if err != nil {
			t.Fatal(err)
		}
		packed, low, batch := estimate(LoadOptions{Quantize: q}), estimate(LoadOptions{LowRAM: true}), estimate(LoadOptions{Batch: 2})
		if !(owned.Step > 10*small.Step) || !(batch.Step > owned.Step*3/2) || !(low.Step < owned.Step) {
			t.Errorf("a step takes %d bytes, %d for a smaller picture, %d for two, %d with one part at a time", owned.Step,
				small.Step, batch.Step, low.Step)
		}
		if asLow.Peak() != low.Peak() {
			t.Errorf("in low RAM %d bytes, opened so %d", asLow.Peak(), low.Peak())
		}
		if !(packed.AllWeights() < owned.AllWeights()*2/3) || owned.AllWeights() != low.AllWeights() {
			t.Errorf("weights of %v, quantized %v", owned.Weights, packed.Weights)
		}
	})
}

// TestLoadPeak loads text encoder and transformer from shards, and checks that the peak is at most
// the memory in use at the end plus the size of a shard.
func TestLoadPeak(t *testing.T) {
	old := readAhead
	readAhead = 0 // these models are smaller
	defer func() { readAhead = old }()
	quantized := func(name string) *mlx.Quantization {
		q, err := component.ParseQuantization(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	float32s, bfloat16s := mlx.Float32, mlx.BFloat16
	for _, test := range []struct {
		name   string
		stored checkpoint.Dtype
		o      LoadOptions
	}{
		{"bfloat16", checkpoint.BF16, LoadOptions{Dtype: &bfloat16s}},
		{"bfloat16 in float32", checkpoint.BF16, LoadOptions{Dtype: &float32s}},
		{"float32", checkpoint.F32, LoadOptions{Dtype: &float32s}},
		{"float32 in bfloat16", checkpoint.F32, LoadOptions{Dtype: &bfloat16s}},
		{"bfloat16 at 4 bits", checkpoint.BF16, LoadOptions{Quantize: quantized("4")}},
		{"float32 at 8 bits", checkpoint.F32, LoadOptions{Quantize: quantized("8")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := modeltest.Wide(t, "zimage-small")
			shard := int64(0)
			for _, component := range []string{"text_encoder", "transformer"} {
				shard = max(shard, split(t, filepath.Join(dir, component), "model", test.stored, 4))
			}
			mlxtest.Do(t, func() {
				before := settled()
				mlx.ResetPeakMemory()
				p, err := Load(os.DirFS(dir), test.o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Close)
				peak := int64(mlx.PeakMemory() - before)
				loaded := int64(settled() - before)
				t.Logf("%d bytes, %d at most while they were loaded, shards of %d", loaded, peak, shard)
				if peak > loaded+shard {
					t.Errorf("%d bytes at the peak, expected at most %d and a shard of %d", peak, loaded, shard)
				}
				var estimated int64
				for _, loadable := range p.loadables {
					estimated += p.weightsMemory(loadable, test.o.Quantize, false).bytes
				}
				// the tables that tokenizers and configs become are not arrays
				if math.Abs(float64(loaded-estimated)) > 0.01*float64(estimated) {
					t.Errorf("%d bytes are in memory, %d by the headers", loaded, estimated)
				}
			})
		})
	}
}

// split replaces the file of a component by shards of another dtype and their index, and returns
// the size of the largest shard.
func split(t *testing.T, dir, name string, dtype checkpoint.Dtype, shards int) (largest int64) {
	t.Helper()
	whole := filepath.Join(dir, name+".safetensors")
	f, err := checkpoint.OpenArrays(whole)
	if err != nil {
		t.Fatal(err)
	}
	var all []*checkpoint.Array
	for _, info := range f.Tensors() {
		tensor, err := f.Read(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		if dtype == checkpoint.F32 {
			data := make([]byte, 0, 2*len(tensor.Data))
			for i := 0; i < len(tensor.Data); i += 2 {
				data = append(data, 0, 0, tensor.Data[i], tensor.Data[i+1])
			}
			tensor.Dtype, tensor.Data = dtype, data
		}
		all = append(all, tensor)
	}
	if err := errors.Join(f.Close(), os.Remove(whole)); err != nil {
		t.Fatal(err)
	}
	index := map[string]map[string]string{"weight_map": {}}
	i := 0
	for loadable := range slices.Chunk(all, (len(all)+shards-1)/shards) {
		i++
		file := fmt.Sprintf("%s-%05d-of-%05d.safetensors", name, i, shards)
		if err := checkpoint.WriteFile(filepath.Join(dir, file), loadable, nil); err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		for _, tensor := range loadable {
			index["weight_map"][tensor.Name] = file
			size += int64(len(tensor.Data))
		}
		largest = max(largest, size)
	}
	text, err := json.Marshal(index)
	if err == nil {
		err = os.WriteFile(whole+".index.json", text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return largest
}

// TestFittingBatch checks that batches are smaller if there is less memory.
func TestFittingBatch(t *testing.T) {
	dir := os.DirFS(modeltest.Wide(t, "flux2-klein-base")) // whose text counts for each image
	mlxtest.Do(t, func() {
		p, err := Load(dir, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		r := Request{Prompt: "a red hat", Width: 64, Height: 64, Steps: 2, MaxSequenceLength: 256}
		for _, test := range []struct{ fit, want int }{{8, 8}, {7, 4}, {2, 2}, {1, 1}} {
			p.memory = 0
			p.memory = prepared(t, p, r, test.fit).Estimate().Peak()
			if n := prepared(t, p, r, 1).fittingBatch(8); n != test.want {
				t.Errorf("%d pictures where %d fit, expected %d", n, test.fit, test.want)
			}
		}
		p.memory = 1
		if n := prepared(t, p, r, 1).fittingBatch(8); n != 1 {
			t.Errorf("%d pictures where none fits, expected 1", n)
		}
	})
}

// publishedConfigs has the configs of published models where they differ from the defaults.
var publishedConfigs = map[string]map[string]string{
	"Z-Image": {
		"text_encoder": `{"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
			"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}`,
		"vae": `{"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512],
			"down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
			"up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"],
			"layers_per_block": 2, "latent_channels": 16, "use_quant_conv": false, "use_post_quant_conv": false}`,
	},
	"FLUX.1-dev": {
		"text_encoder":   `{"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}`,
		"text_encoder_2": `{"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}`,
		"transformer":    `{"guidance_embeds": true}`,
	},
	"klein-4B": {
		"transformer": `{"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24,
			"joint_attention_dim": 7680, "guidance_embeds": false}`,
		"vae": `{"_class_name": "AutoencoderKLFlux2"}`,
	},
	"klein-9B": {
		"text_encoder": `{"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
			"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}`,
		"transformer": `{"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32,
			"joint_attention_dim": 12288, "guidance_embeds": false}`,
		"vae": `{"_class_name": "AutoencoderKLFlux2"}`,
	},
	"Qwen-Image": {
		"text_encoder": `{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
			"num_attention_heads": 28, "num_key_value_heads": 4, "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584}}`,
		"vae": `{"_class_name": "AutoencoderKLQwenImage"}`,
		"processor": `{"do_resize": true, "do_rescale": true, "do_normalize": true, "resample": 3,
			"rescale_factor": 0.00392156862745098, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
			"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056}`,
	},
}

// headersOf declares a published model on an H200, without weights.
func headersOf(t *testing.T, name, class string, dtype mlx.Dtype) (*Pipeline, memoryModel) {
	t.Helper()
	fsys := fstest.MapFS{
		index.File:                        {Data: []byte(`{"is_distilled": true}`)},
		"scheduler/scheduler_config.json": {Data: []byte(`{}`)},
	}
	configs := map[string]string{"transformer": "{}"}
	for _, from := range []map[string]string{publishedConfigs["Z-Image"], publishedConfigs[name]} {
		maps.Copy(configs, from)
	}
	for dir, text := range configs {
		file := dir + "/config.json"
		if dir == "processor" {
			file = dir + "/preprocessor_config.json"
		}
		fsys[file] = &fstest.MapFile{Data: []byte(text)}
	}
	p := &Pipeline{Autoencoder: &Autoencoder{device: mlx.GPU, dtype: dtype}, Class: class, loadables: map[string]*loadable{}}
	p.loader = &component.Loader{Folder: component.Folder{FS: fsys, Points: &p.points, Dtype: dtype}}
	p.memory = 150e9
	if err := p.declare(index.Index{Class: class}, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Components() {
		loadable := &loadable{Component: c, sizes: map[sizesKey]weightsMemory{}}
		for range nn.Parameters(c.Model) {
			loadable.found = append(loadable.found, nn.Found{Tensor: checkpoint.Tensor{Dtype: "BF16"}})
		}
		p.loadables[c.Dir] = loadable
	}
	return p, newMemoryModel(mlx.GPU, dtype, "sm_90")
}

// An h200Peak is the measured peak memory of a run on an H200.
type h200Peak struct {
	model, class string
	side, tokens int
	batch        int
	guidance     float64
	references   []image.Point
	quantize     string
	low          bool
	lookahead    float64 // gigabytes, 0 for no limit
	gigabytes    float64
}

// h200Peaks returns the measured peaks.
func h200Peaks() []h200Peak {
	const (
		klein           = "Flux2KleinPipeline"
		zimage, flux    = "ZImagePipeline", "FluxPipeline"
		qwen, qwenEdits = "QwenImagePipeline", "QwenImageEditPlusPipeline"
	)
	square := image.Pt(1024, 1024)
	return []h200Peak{
		{model: "klein-4B", class: klein, side: 256, tokens: 512, guidance: 1, gigabytes: 15.5},
		{model: "klein-4B", class: klein + " float32", side: 1024, tokens: 512, guidance: 1, gigabytes: 46.8},
		{model: "klein-4B", class: klein, side: 512, tokens: 512, guidance: 1, gigabytes: 19.6},
		{model: "klein-4B", class: klein, side: 1024, tokens: 512, guidance: 1, gigabytes: 30.0},
		{model: "klein-4B", class: klein, side: 2048, tokens: 512, guidance: 1, gigabytes: 34.3},
		{model: "klein-4B", class: klein, side: 1024, tokens: 512, guidance: 1, references: []image.Point{square}, gigabytes: 31.3},
		{model: "klein-4B", class: klein, side: 1024, tokens: 512, guidance: 1, references: []image.Point{square,
			{768, 1024}}, gigabytes: 33.2},
		{model: "klein-4B", class: klein, side: 256, tokens: 512, batch: 8, guidance: 1, gigabytes: 31.0},
		{model: "klein-4B", class: klein, side: 512, tokens: 512, batch: 4, guidance: 1, gigabytes: 31.0},
		{model: "klein-9B", class: klein, side: 1024, tokens: 512, guidance: 1, gigabytes: 44.8},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, gigabytes: 46.2},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, lookahead: 8, gigabytes: 41.6},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, lookahead: 4, gigabytes: 37.9},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, lookahead: 2, gigabytes: 36.8},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, quantize: "8", gigabytes: 34.1},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, quantize: "4", gigabytes: 26.4},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, quantize: "4", lookahead: 8, gigabytes: 17.7},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, quantize: "4", lookahead: 4, gigabytes: 14.0},
		{model: "FLUX.1-dev", class: flux, side: 1024, tokens: 512, guidance: 3.5, quantize: "4", lookahead: 2, gigabytes: 12.9},
		{model: "FLUX.1-dev", class: flux, side: 2048, tokens: 512, guidance: 3.5, gigabytes: 53.3},
		{model: "Z-Image", class: zimage, side: 1024, tokens: 23, gigabytes: 30.4},
		{model: "Z-Image", class: zimage, side: 1024, tokens: 23, low: true, gigabytes: 23.3},
		{model: "Z-Image", class: zimage, side: 2048, tokens: 23, gigabytes: 43.9},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 4, gigabytes: 63.1},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 4, lookahead: 8, gigabytes: 62.1},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 4, quantize: "8", gigabytes: 43.2},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 4, quantize: "4", gigabytes: 35.0},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 4, quantize: "4", lookahead: 4, gigabytes: 24.7},
		{model: "Qwen-Image", class: qwen, side: 1024, tokens: 20, guidance: 1, gigabytes: 63.0},
		{model: "Qwen-Image", class: qwen, side: 1328, tokens: 20, guidance: 4, gigabytes: 65.2},
		{model: "Qwen-Image", class: qwen, side: 2048, tokens: 20, guidance: 4, gigabytes: 68.8},
		{model: "Qwen-Image", class: qwenEdits, side: 1024, tokens: 220, guidance: 4, references: []image.Point{square}, gigabytes: 67.8},
		{model: "Qwen-Image", class: qwenEdits, side: 1024, tokens: 420, guidance: 4, references: []image.Point{square,
			square}, gigabytes: 69.0},
	}
}

// estimate estimates the run without its weights.
func (m h200Peak) estimate(t *testing.T, stack func(component.Component) component.BlockMemory) Estimate {
	t.Helper()
	class, wide := strings.CutSuffix(m.class, " float32")
	dtype := mlx.BFloat16
	if wide {
		dtype = mlx.Float32
	}
	p, memoryModel := headersOf(t, m.model, class, dtype)
	p.blockMemory = stack
	memoryModel.lookahead = int64(m.lookahead * 1e9)
	var q *mlx.Quantization
	if m.quantize != "" {
		var err error
		if q, err = component.ParseQuantization(m.quantize, 0); err != nil {
			t.Fatal(err)
		}
	}
	r := Request{Height: m.side, Width: m.side, Steps: 4, Guidance: m.guidance, MaxSequenceLength: m.tokens}
	for _, size := range m.references {
		r.References = append(r.References, image.NewAlpha(image.Rectangle{Max: size}))
	}
	run, err := p.newRun(r)
	if err != nil {
		t.Fatal(err)
	}
	run.batch = max(1, m.batch)
	return run.estimateWith(residency{lowRAM: m.low, decodeAlone: m.low}, q, memoryModel)
}

// TestEstimateH200 compares estimates with measured peaks.
func TestEstimateH200(t *testing.T) {
	if mlx.GPU.Backend() != mlx.BackendCUDA {
		t.Skip("the estimate is for Metal")
	}
	gb := func(n int64) float64 { return float64(n) / 1e9 }
	for _, test := range h200Peaks() {
		for _, by := range descriptions {
			e := test.estimate(t, by.stack)
			off := gb(e.Peak())/test.gigabytes - 1
			t.Logf("%-10s %-5s %4d x%d, %d pictures, ahead %g, %-7s: %.1f GB, estimated %.1f (%+.1f %%): weights %.1f, "+
				"encode %.1f, step %.1f, decode %.1f",
				test.model, test.quantize, test.side, max(1, test.batch), len(test.references), test.lookahead, by.name,
				test.gigabytes, gb(e.Peak()), 100*off,
				gb(e.AllWeights()), gb(e.Encode), gb(e.Step), gb(e.Decode))
			if !(math.Abs(off) < cmp.Or(by.limit, 0.1)) {
				t.Errorf("%s %s, %d, %g ahead, by its %s: %.1f GB, estimated %.1f", test.model, test.quantize, test.side,
					test.lookahead, by.name, test.gigabytes, gb(e.Peak()))
			}
		}
	}
}
