package publishedtest

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/textenc"
)

// A Tensor is a tensor of a published model.
type Tensor struct {
	checkpoint.Tensor         // with the published name
	deviation, mean   float64 // of random values
}

// Tensors lists the tensors of a component of the model, whose configs are in a folder: those that
// gomflux declares, and those of the published files that it has no use for.
func (m *Model) Tensors(folder string, c component.Component) (list []Tensor, err error) {
	classes, err := m.classes()
	if err != nil {
		return nil, err
	}
	class := classes[c.Dir]
	dtype := m.Dtypes[c.Dir]
	if dtype == "" {
		dtype = checkpoint.BF16
	}
	for _, p := range nn.Parameters(whole(c.Model)) {
		t := Tensor{Tensor: checkpoint.Tensor{Name: p.Name, Shape: p.Stored(), Dtype: dtype}}
		for _, from := range table.Names[class] {
			if rest, ok := strings.CutPrefix(t.Name, from[0]); ok {
				t.Name = from[1] + rest
				break
			}
		}
		t.deviation, t.mean = modeltest.Spread(p)
		list = append(list, t)
	}
	text, err := os.ReadFile(filepath.Join(folder, c.Dir, component.ConfigFile))
	if err != nil {
		return nil, err
	}
	config, err := parse(text)
	if err != nil {
		return nil, err
	}
	for name, shape := range table.More[class] {
		t := Tensor{Tensor: checkpoint.Tensor{Dtype: dtype}, deviation: 0.1}
		if name == "lm_head.weight" && config["tie_word_embeddings"] == true {
			continue
		}
		if strings.HasSuffix(name, "num_batches_tracked") {
			t.Dtype = checkpoint.I64
		}
		for _, d := range shape {
			n, err := dimension(config, fmt.Sprint(d))
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", class, name, err)
			}
			t.Shape = append(t.Shape, n)
		}
		before, count, repeated := strings.Cut(name, "{")
		count, after, _ := strings.Cut(count, "}")
		n := 1
		if repeated {
			if n, err = dimension(config, count); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", class, name, err)
			}
		}
		for i := range n {
			if t.Name = name; repeated {
				t.Name = fmt.Sprint(before, i, after)
			}
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// whole returns a text encoder with all of its layers and its vision encoder, of which a pipeline may
// need a part. Other networks are whole.
func whole(model any) any {
	switch m := model.(type) {
	case *textenc.Qwen3:
		return textenc.NewQwen3(m.Config, []int{m.Config.NumHiddenLayers}, m.Dtype)
	case *textenc.Mistral3:
		return textenc.NewMistral3(m.Config, []int{m.Config.Text.NumHiddenLayers}, m.Dtype)
	case *textenc.Qwen25VL:
		return textenc.NewQwen25VL(m.Config, true, m.Dtype)
	case *textenc.Qwen3VL:
		return textenc.NewQwen3VL(m.Config, []int{m.Config.Text.NumHiddenLayers}, m.Dtype).WithVision()
	}
	return model
}

// dimension is a number, or one times a key of a config: 2*text_config.hidden_size.
func dimension(config map[string]any, text string) (int, error) {
	factor, key, ok := strings.Cut(text, "*")
	if !ok {
		factor, key = "1", text
	}
	var value any = config
	if _, err := strconv.Atoi(key); err == nil {
		value = json.Number(key)
	} else {
		for _, k := range strings.Split(key, ".") {
			value = value.(map[string]any)[k]
		}
	}
	by, err := strconv.Atoi(factor)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(fmt.Sprint(value))
	return by * n, err
}

// weightsName is the name of a component's files without an extension.
func weightsName(dir string) string {
	if strings.HasPrefix(dir, "text_encoder") {
		return "model"
	}
	return "diffusion_pytorch_model"
}

// WriteWeights writes random weights for the configs of the model in a folder, with the names and dtypes
// of the published ones, in as many files.
func (m *Model) WriteWeights(folder string) error {
	components, err := modeltest.Declared(os.DirFS(folder))
	if err != nil {
		return err
	}
	random := newNormals()
	for _, c := range components {
		tensors, err := m.Tensors(folder, c)
		if err != nil {
			return err
		}
		n := max(1, m.Shards[c.Dir])
		files, where, bytes := make([][]*checkpoint.Array, n), map[string]string{}, 0
		for i, t := range tensors {
			shard := i * n / len(tensors)
			x := random.tensor(t)
			files[shard] = append(files[shard], x)
			where[t.Name] = fmt.Sprintf("%s-%05d-of-%05d.safetensors", weightsName(c.Dir), shard+1, n)
			if n == 1 {
				where[t.Name] = weightsName(c.Dir) + ".safetensors"
			}
			bytes += len(x.Data)
		}
		for _, list := range files {
			to := filepath.Join(folder, c.Dir, where[list[0].Name])
			if err := checkpoint.WriteFile(to, list, map[string]string{"format": "pt"}); err != nil {
				return err
			}
		}
		if n == 1 {
			continue
		}
		list := map[string]any{"metadata": map[string]int{"total_size": bytes}, "weight_map": where}
		text, err := json.MarshalIndent(list, "", "  ")
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, c.Dir, weightsName(c.Dir)+indexSuffix), text, 0o666)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteWeights is [Model.WriteWeights] for a folder of any model, with a file for each component.
func WriteWeights(folder string) error {
	return (&Model{Files: map[string]string{index.File: filepath.Join(folder, index.File)}}).WriteWeights(folder)
}

// normals are random numbers, which are used again and again: the largest tensors are embeddings of
// whole vocabularies.
type normals []float32

func newNormals() normals {
	r := rand.New(rand.NewPCG(1, 2))
	n := make(normals, 1<<16-15) // with no common factor with usual sizes
	for i := range n {
		n[i] = float32(r.NormFloat64())
	}
	return n
}

// tensor returns a tensor with random values.
func (n normals) tensor(t Tensor) *checkpoint.Array {
	x := &checkpoint.Array{Name: t.Name, Dtype: t.Dtype, Shape: t.Shape}
	size, width := t.Len(), t.Dtype.Size()
	if t.Dtype == checkpoint.I64 {
		x.Data = make([]byte, size*width)
		return x
	}
	block := make([]byte, 0, width*min(size, len(n)))
	for _, v := range n[:min(size, len(n))] {
		bits := math.Float32bits(float32(t.mean + t.deviation*float64(v)))
		if width == 4 {
			block = append(block, byte(bits), byte(bits>>8))
		}
		block = append(block, byte(bits>>16), byte(bits>>24))
	}
	x.Data = slices.Repeat(block, (size+len(n)-1)/len(n))[:width*size]
	return x
}
