package main

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Environment variables of the tests with OpenAI's clients, which make clients sets.
const (
	envPython = "GOMFLUX_OPENAI_PYTHON" // a Python with openai
	envNode   = "GOMFLUX_OPENAI_NODE"   // a folder whose node_modules has openai
)

// TestServePython runs openai-python against gomflux serve.
func TestServePython(t *testing.T) {
	python := os.Getenv(envPython)
	if python == "" {
		t.Skipf("%s is not set to a Python with openai (make clients does it)", envPython)
	}
	runClient(t, python, "testdata/openai/client.py")
}

// TestServeNode runs openai-node against gomflux serve.
func TestServeNode(t *testing.T) {
	modules := os.Getenv(envNode)
	if modules == "" {
		t.Skipf("%s is not set to a folder with openai in node_modules (make clients does it)", envNode)
	}
	runClient(t, "node", "testdata/openai/client.mjs", modules)
}

// runClient starts a server, and a program with its address. The image that the program got must be
// that of gomflux generate.
func runClient(t *testing.T, program ...string) {
	const token = "0123456789abcdef"
	dir := t.TempDir()
	tokens, in, result := filepath.Join(dir, "tokens"), filepath.Join(dir, "in.png"), filepath.Join(dir, "result.png")
	if err := os.WriteFile(tokens, []byte("ann:"+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		img.Set(i%64, i/64, color.RGBA{uint8(4 * i), uint8(i / 16), 99, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	server, address, stderr := startServe(t, "--model", "shapes", "--model", absolute(tinyEditor), "--max-queue", "1",
		"--token-file", tokens, "--device", "cpu")
	client := exec.CommandContext(t.Context(), program[0], append(program[1:], address, token, in, result)...)
	if out, err := client.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "all checks passed\n") {
		server.Process.Kill()
		server.Wait()
		t.Fatalf("%v:\n%s\nlog of the server:\n%s", err, out, stderr)
	}

	want := filepath.Join(dir, "want.png")
	generate := exec.CommandContext(t.Context(), "gomflux", "generate", "--model", "shapes", "--prompt", "a red circle", "--seed", "7",
		"--steps", "3", "--width", "128", "--height", "64", "--device", "cpu", "--output", want)
	generate.Env = server.Env
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	expected, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, expected) {
		t.Error("the client's image differs from that of gomflux generate")
	}
}
