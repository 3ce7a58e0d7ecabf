// Command gen writes mlxc/bindings.go: one Go function variable for each mlx-c
// function that package mlx calls, with the prototype that mlx-c's headers
// declare.
//
//	go run ./internal/gen -headers ../.setup/include -uses . -o internal/mlxc/bindings.go
//
// What is used is read from the Go sources themselves (every mlxc.Name), so
// nothing needs to be listed by hand.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	headers := flag.String("headers", "../.setup/include", "folder that holds mlx/c/*.h")
	uses := flag.String("uses", ".", "folder of Go sources that use package mlxc")
	out := flag.String("o", "internal/mlxc/bindings.go", "file to write")
	flag.Parse()

	protos, err := readHeaders(filepath.Join(*headers, "mlx", "c"))
	if err != nil {
		log.Fatalf("%v (make setup puts the headers there)", err)
	}
	names, err := usedNames(*uses)
	if err != nil {
		log.Fatal(err)
	}
	src, err := generate(protos, names)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, src, 0o644); err != nil {
		log.Fatal(err)
	}
}

// A prototype is one C function declaration.
type prototype struct {
	name   string
	result string
	params []param
}

type param struct{ typ, name string }

var (
	comment   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	preproc   = regexp.MustCompile(`(?m)^\s*#.*$`)
	structDef = regexp.MustCompile(`(?s)\{[^{}]*\}`)
	function  = regexp.MustCompile(`(?s)^\s*((?:const\s+)?\w+(?:\s*\*)?)\s*(_?mlx_\w+)\s*\((.*)\)\s*$`)
	stars     = regexp.MustCompile(`\*+`)
	funcParam = regexp.MustCompile(`\(\*\s*(\w+)?\)\s*\([^()]*\)`)
)

// readHeaders returns the prototypes of all headers in dir, by C name.
func readHeaders(dir string) (map[string]prototype, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.h"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no headers in %s", dir)
	}
	protos := map[string]prototype{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := preproc.ReplaceAllString(comment.ReplaceAllString(string(text), ""), "")
		s = strings.ReplaceAll(s, `extern "C" {`, "")
		s = structDef.ReplaceAllString(s, "")
		for _, decl := range strings.Split(s, ";") {
			m := function.FindStringSubmatch(decl)
			if m == nil || strings.Contains(m[1], "typedef") {
				continue
			}
			p := prototype{name: m[2], result: normal(m[1])}
			list := funcParam.ReplaceAllString(m[3], "callback")
			for _, arg := range strings.Split(list, ",") {
				arg = normal(arg)
				if arg == "void" || arg == "" {
					continue
				}
				p.params = append(p.params, splitParam(arg))
			}
			protos[p.name] = p
		}
	}
	return protos, nil
}

func normal(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	s = strings.ReplaceAll(s, " *", "*")
	return stars.ReplaceAllString(s, "$0 ")
}

func splitParam(arg string) param {
	if strings.Contains(arg, "callback") {
		return param{typ: "callback"}
	}
	i := strings.LastIndexByte(arg, ' ')
	if i < 0 {
		return param{typ: arg}
	}
	return param{typ: strings.TrimSpace(arg[:i]), name: arg[i+1:]}
}

// usedNames returns every X of mlxc.X in the Go files of dir.
func usedNames(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "mlxc" {
					used[sel.Sel.Name] = true
				}
			}
			return true
		})
	}
	for _, own := range []string{"Open", "OpenGlobal", "ABI", "ErrABI", "Callback", "MallocTrim",
		"CUDAKernel", "CompileCUDA", "CUDACompiler", "CUDAModule"} {
		delete(used, own)
	}
	return slices.Sorted(maps.Keys(used)), nil
}

// goName turns mlx_array_new into ArrayNew.
func goName(c string) string {
	var b strings.Builder
	for _, word := range strings.Split(strings.TrimPrefix(strings.TrimPrefix(c, "_"), "mlx_"), "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// goType is the Go type of a C parameter. Every mlx-c object is a struct of
// one pointer, which the C calling conventions pass like the pointer itself;
// an optional is a value and a flag in eight bytes, passed like an integer.
func goType(c string) (string, error) {
	if c == "const void*" {
		return "unsafe.Pointer", nil // Go memory that is read during the call
	}
	c = strings.TrimPrefix(c, "const ")
	switch c {
	case "int":
		return "int32", nil
	case "mlx_dtype", "mlx_device_type", "mlx_compile_mode":
		return "int32", nil
	case "size_t", "uintptr_t":
		return "uintptr", nil
	case "uint64_t":
		return "uint64", nil
	case "bool":
		return "bool", nil
	case "float":
		return "float32", nil
	case "double":
		return "float64", nil
	case "char*":
		return "string", nil
	case "callback", "void*":
		return "uintptr", nil
	case "char**":
		return "unsafe.Pointer", nil
	case "bool*":
		return "*bool", nil
	case "int*", "mlx_dtype*", "mlx_device_type*":
		return "*int32", nil
	case "size_t*":
		return "*uintptr", nil
	case "uint64_t*":
		return "*uint64", nil
	case "float*":
		return "*float32", nil
	case "mlx_optional_int", "mlx_optional_float", "mlx_optional_dtype":
		return "uint64", nil
	case "mlx_error_handler_func":
		return "uintptr", nil
	}
	switch {
	case strings.HasPrefix(c, "mlx_") && strings.HasSuffix(c, "*"):
		return "*uintptr", nil
	case strings.HasPrefix(c, "mlx_") && !strings.Contains(c, "iterator") && !strings.Contains(c, "vtable"):
		return "uintptr", nil
	}
	return "", fmt.Errorf("no Go type for %q", c)
}

func goResult(c string) (string, error) {
	switch {
	case c == "void":
		return "", nil
	case strings.HasSuffix(c, "* "):
		return "unsafe.Pointer", nil
	}
	return goType(strings.TrimSpace(c))
}

func generate(protos map[string]prototype, names []string) ([]byte, error) {
	byGo := map[string]prototype{}
	for _, p := range protos {
		byGo[goName(p.name)] = p
	}
	var vars, table bytes.Buffer
	var unknown []string
	for _, name := range names {
		p, ok := byGo[name]
		if !ok {
			unknown = append(unknown, name)
			continue
		}
		var args []string
		for i, a := range p.params {
			t, err := goType(strings.TrimSpace(a.typ))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			arg := a.name
			switch {
			case arg == "":
				arg = fmt.Sprintf("callback%d", i)
			case token.IsKeyword(arg) || arg == "string":
				arg += "_"
			}
			args = append(args, arg+" "+t)
		}
		result, err := goResult(p.result)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(&vars, "\t%s func(%s) %s\n", name, strings.Join(args, ", "), result)
		fmt.Fprintf(&table, "\t{%q, &%s},\n", p.name, name)
	}
	if unknown != nil {
		return nil, fmt.Errorf("mlx-c declares nothing for: %s", strings.Join(unknown, ", "))
	}
	var b bytes.Buffer
	b.WriteString("// Code generated by mlx/internal/gen from mlx-c's headers. DO NOT EDIT.\n\npackage mlxc\n\n")
	if bytes.Contains(vars.Bytes(), []byte("unsafe.")) {
		b.WriteString("import \"unsafe\"\n\n")
	}
	fmt.Fprintf(&b, "var (\n%s)\n\n", vars.Bytes())
	fmt.Fprintf(&b, "var functions = []function{\n%s}\n", table.Bytes())
	return format.Source(b.Bytes())
}
