package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// A chain is a language model that writes the first token, and after each of some tokens the next one. Without one that
// is the first again.
type chain struct {
	first    string
	next     [][2]string
	template string // in place of the model's
}

const stop = "<|im_end|>"

// chains are language models that write nothing useful, and what all that ask them get in one line. Those of the first
// two write.
var chains = map[string]struct {
	chain
	status  int    // of chats
	message string // "" for those that write
}{
	"writes":  {chain{"a", [][2]string{{"a", "b"}, {"b", "c"}, {"c", stop}}, ""}, 200, ""},
	"long":    {chain{"a", [][2]string{{"a", "b"}, {"b", "a"}}, ""}, 200, ""},
	"loop":    {chain{"a", nil, ""}, 500, "the language model repeats one token endlessly (token 64, 101 times)"},
	"ends":    {chain{stop, nil, ""}, 500, "the language model wrote nothing"},
	"spaces":  {chain{"Ċ", [][2]string{{"Ċ", stop}}, ""}, 500, "the language model wrote nothing"},
	"thinks":  {chain{"<think>", [][2]string{{"<think>", "a"}, {"a", stop}}, ""}, 500, "wrote nothing but thoughts, of 2 tokens"},
	"syntax":  {chain{"a", nil, "{% if image %}"}, 404, "chat_template.jinja: the chat template: jinja parse: unclosed if block"},
	"refuses": {chain{"a", nil, "{# image #}{{ raise_exception('a\nb') }}"}, 400, `the chat template refuses the conversation: "a\nb"`},
	"deaf":    {chain{"a", nil, "{# image #}hello"}, 404, "the chat template leaves out the text of the last message"},
	"ranges": {chain{"a", nil, "{# image #}{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"}, 404,
		"the chat template: range: more than 100000 numbers"},
}

// write makes a folder of the small Qwen-Image-Edit, whose language model sees images: its layers add nothing to an
// embedding, which has a single number that is not 0, and the head maps the place of this to a token.
func (c chain) write(t *testing.T, folder string) {
	t.Helper()
	if err := os.CopyFS(folder, os.DirFS("../../models/testdata/qwen-edit/model")); err != nil {
		t.Fatal(err)
	}
	ids := map[string]int{}
	for _, name := range []string{"vocab.json", "added_tokens.json"} {
		readJSONFile(t, filepath.Join(folder, "tokenizer", name), &ids)
	}
	file := filepath.Join(folder, "text_encoder/model.safetensors")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	size := 8 + binary.LittleEndian.Uint64(data)
	var tensors map[string]struct {
		Offsets [2]uint64 `json:"data_offsets"`
		Shape   []int
	}
	if err := json.Unmarshal(data[8:size], &tensors); err != nil {
		t.Fatal(err)
	}
	const one, head = 0x3f80, 0x41c8 // 1 and 25 in bfloat16
	set := func(name string, value uint16, at ...int) {
		b := data[size+tensors[name].Offsets[0] : size+tensors[name].Offsets[1]]
		for i := 0; at == nil && 2*i < len(b); i++ {
			binary.LittleEndian.PutUint16(b[2*i:], value)
		}
		if at != nil {
			binary.LittleEndian.PutUint16(b[2*(at[0]*tensors[name].Shape[1]+at[1]):], value)
		}
	}
	const embed, out = "model.embed_tokens.weight", "lm_head.weight"
	for name := range tensors {
		if name == embed || name == out || strings.HasPrefix(name, "model.layers.") &&
			(strings.HasSuffix(name, "o_proj.weight") || strings.HasSuffix(name, "down_proj.weight")) {
			set(name, 0)
		}
	}
	set("model.norm.weight", one)
	for id := range tensors[embed].Shape[0] {
		set(embed, one, id, 0)
	}
	set(out, head, ids[c.first], 0)
	for i, pair := range c.next {
		set(embed, 0, ids[pair[0]], 0)
		set(embed, one, ids[pair[0]], i+1)
		set(out, head, ids[pair[1]], i+1)
	}
	if err := os.WriteFile(file, data, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"processor", "tokenizer"} {
		if c.template == "" {
			break
		}
		if err := os.WriteFile(filepath.Join(folder, part, "chat_template.jinja"), []byte(c.template), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func readJSONFile(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestBadLanguageModels asks language models that write nothing useful, by all routes of a server that do and by the
// commands: each answers with one line, generates no image with the prompt as it was typed, and the server goes on.
func TestBadLanguageModels(t *testing.T) {
	dir, args := t.TempDir(), []string{"--no-gallery", "--device", "cpu"}
	for name, c := range chains {
		c.write(t, filepath.Join(dir, name))
		args = append(args, "--model", filepath.Join(dir, name))
	}
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewRGBA(image.Rect(0, 0, 64, 64))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.png"), file.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	picture := base64.StdEncoding.EncodeToString(file.Bytes())
	_, address, _ := startServe(t, args...)
	ask := func(path, body string) (int, string) { return askServe(t, "POST", address+path, "", body) }
	one := func(about, text, message string) {
		t.Helper()
		if !strings.Contains(text, message) || strings.Contains(text, "stays") {
			t.Errorf("%s: %.400s, expected %s", about, text, message)
		}
	}
	for name, c := range chains {
		if c.message == "" {
			continue
		}
		quoted, err := json.Marshal(c.message)
		if err != nil {
			t.Fatal(err)
		}
		message := strings.Trim(string(quoted), `"`)
		for _, fields := range []string{``, `, "stream": true`} {
			const chat = `{"model": %q, "messages": [{"role": "user", "content": "a hat"}]%s}`
			status, text := ask("v1/chat/completions", fmt.Sprintf(chat, name, fields))
			if begun := fields != "" && name == "loop"; begun && status != 200 || !begun && status != c.status {
				t.Errorf("%s%s: status %d, expected %d", name, fields, status, c.status)
			}
			one(name+fields, text, message)
		}
		reference := fmt.Sprintf(`{"data": %q}`, picture)
		for path, fields := range map[string]string{
			"jobs":    fmt.Sprintf(`"prompt": "a hat", "enhance": {}, "width": 32, "height": 32, "references": [%s]`, reference),
			"enhance": `"prompt": "a hat"`, "describe": `"image": ` + reference,
		} {
			var job struct{ ID string }
			status, text := ask("api/v1/"+path, fmt.Sprintf(`{"model": %q, %s}`, name, fields))
			if err := json.Unmarshal([]byte(text), &job); err != nil || status != 202 {
				t.Fatalf("%s %s: status %d, %s", name, path, status, text)
			}
			_, text = askServe(t, "GET", address+"api/v1/jobs/"+job.ID+"/events", "", "")
			_, end, _ := strings.Cut(text, "event: failed")
			one(name+" "+path, end, message)
		}
		ask("sdapi/v1/options", fmt.Sprintf(`{"sd_model_checkpoint": %q}`, name))
		status, text := ask("sdapi/v1/interrogate", fmt.Sprintf(`{"image": %q}`, picture))
		if status != c.status {
			t.Errorf("%s interrogate: status %d, expected %d", name, status, c.status)
		}
		one(name+" interrogate", text, message)

		folder := filepath.Join(dir, name)
		for _, args := range [][]string{
			{"edit", "-m", folder, "-i", "a.png", "-p", "a hat", "--enhance", "-o", "x.png", "--device", "cpu", "--json"},
			{"describe", "a.png", "-m", folder, "--device", "cpu"},
		} {
			cmd := exec.Command("gomflux", args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
			var errors bytes.Buffer
			cmd.Stderr = &errors
			cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != cli.ExitModel || strings.Count(errors.String(), "\n") != 1 {
				t.Errorf("%s %s: exit code %d, %s", name, args[0], code, &errors)
			}
			one(name+" "+args[0], errors.String(), c.message)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x.png")); err == nil {
		t.Error("an image was generated")
	}
	leaves(t, address)
}

// leaves has clients go away while a language model writes, in a chat and before an image: it stops, and the next
// job runs.
func leaves(t *testing.T, address string) {
	t.Helper()
	canceled := `gomflux_jobs_ended_total{state="canceled"} %d` + "\n"
	for n, stream := range []bool{true, false} {
		body := fmt.Sprintf(`{"model": "long", "max_tokens": 8192, "stream": %v, "messages": [{"role": "user", "content": "a"}]}`, stream)
		client := &http.Client{}
		if !stream {
			client.Timeout = 500 * time.Millisecond
		}
		r, err := client.Post(address+"v1/chat/completions", "application/json", strings.NewReader(body))
		if err == nil {
			line, _ := bufio.NewReader(r.Body).ReadString('\n')
			r.Body.Close()
			if !strings.Contains(line, `"content":"a"`) {
				t.Errorf("the stream begins with %s", line)
			}
		} else if stream {
			t.Error(err)
		}
		status, text := askServe(t, "POST", address+"v1/chat/completions", "",
			`{"model": "writes", "messages": [{"role": "user", "content": "a"}]}`)
		if status != 200 || !strings.Contains(text, `"content":"abc"`) {
			t.Errorf("the next chat: status %d, %s", status, text)
		}
		if _, text = askServe(t, "GET", address+"metrics", "", ""); !strings.Contains(text, fmt.Sprintf(canceled, n+1)) {
			t.Errorf("%d clients went away, and not as many jobs were canceled", n+1)
		}
	}
}
