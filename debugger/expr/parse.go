package expr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// options are the features of Starlark that are on. Recursion is off, so that calls cannot
// exhaust Go's stack.
var options = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true}

// A program is rewritten and compiled source.
type program struct {
	name    string // in the positions of errors
	program *starlark.Program
}

// compile parses, rewrites and compiles source. Errors are one line.
func (in *Interpreter) compile(source string, condition bool) (*program, error) {
	source = strings.TrimRight(strings.ReplaceAll(source, "\r\n", "\n"), " \t\n")
	if !strings.Contains(source, "\n") {
		source = strings.TrimSpace(source)
	}
	text := translate(source)
	w := &rewriter{moved: text != source, assigned: map[string]bool{}}
	in.compiled++
	p := &program{name: fmt.Sprint("expression ", in.compiled)}
	f, err := options.Parse(p.name, text, 0)
	if err != nil {
		return nil, w.parseError(err)
	}
	if len(f.Stmts) == 0 {
		return nil, errors.New("the expression is empty")
	}
	if condition {
		if len(f.Stmts) != 1 {
			return nil, fmt.Errorf("line %d: a condition is a single expression", syntax.Start(f.Stmts[1]).Line)
		}
		if _, ok := f.Stmts[0].(*syntax.ExprStmt); !ok {
			return nil, errors.New("a condition is an expression, not a statement (== compares)")
		}
	}
	syntax.Walk(f, w.visit)
	f.Stmts = w.stmts(f.Stmts)
	if w.err != nil {
		return nil, w.err
	}
	known := func(name string) bool {
		return in.names.Has(name) || w.assigned[name] || in.promised[name] || slices.Contains(stopNames, name)
	}
	if p.program, err = starlark.FileProgram(f, known); err != nil {
		return nil, in.resolveError(err, w)
	}
	if condition {
		maps.Copy(in.promised, w.assigned)
	}
	return p, nil
}

// A rewriter changes the tree of a source where Starlark has no interface for what tensors and
// variables need.
type rewriter struct {
	moved    bool            // whether columns differ from those of the source
	assigned map[string]bool // names of global variables
	err      error           // the first error
}

// Names that only rewritten source has.
const (
	leftName    = "$left"    // a function: op, x
	itemName    = "$item"    // a function: x
	resultName  = "$result"  // a function: the value of an expression statement
	globalsName = "$globals" // a dictionary: the global variables
)

func callOf(pos syntax.Position, name string, args ...syntax.Expr) syntax.Expr {
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: pos, Name: name}, Lparen: pos, Args: args, Rparen: pos}
}

// visit rewrites expressions. Comparisons, which Starlark computes without asking the operands,
// become x | y, where x is a [left] that knows the operator, and so do "in" and %. Numbers have a
// method item, since in other frameworks the reductions return tensors.
func (w *rewriter) visit(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.BinaryExpr:
		switch n.Op {
		case syntax.EQL, syntax.NEQ, syntax.LT, syntax.LE, syntax.GT, syntax.GE, syntax.IN, syntax.NOT_IN, syntax.PERCENT:
			op := &syntax.Literal{Token: syntax.INT, TokenPos: n.OpPos, Raw: "0", Value: int64(n.Op)}
			n.X, n.Op = callOf(n.OpPos, leftName, op, n.X), syntax.PIPE
		}
	case *syntax.CallExpr:
		switch f := n.Fn.(type) {
		case *syntax.DotExpr:
			if f.Name.Name == "item" && len(n.Args) == 0 {
				n.Fn, n.Args = &syntax.Ident{NamePos: f.Dot, Name: itemName}, []syntax.Expr{f.X}
			}
		case *syntax.Ident: // keep("name", x)
			if f.Name == "keep" && len(n.Args) > 0 {
				if name, ok := n.Args[0].(*syntax.Literal); ok && name.Token == syntax.STRING {
					w.assigned[name.Value.(string)] = true
				}
			}
		}
	}
	return true
}

// stmts rewrites statements outside of functions, whose variables become keys of [globals]:
// functions of other programs see their values there.
func (w *rewriter) stmts(list []syntax.Stmt) (out []syntax.Stmt) {
	for _, s := range list {
		out = append(out, s)
		switch s := s.(type) {
		case *syntax.ExprStmt:
			s.X = callOf(syntax.Start(s.X), resultName, s.X)
		case *syntax.AssignStmt:
			s.LHS = w.target(s.LHS)
		case *syntax.IfStmt:
			s.True, s.False = w.stmts(s.True), w.stmts(s.False)
		case *syntax.WhileStmt:
			s.Body = w.stmts(s.Body)
		case *syntax.ForStmt:
			s.Vars, s.Body = w.target(s.Vars), w.stmts(s.Body)
		case *syntax.DefStmt:
			target := w.target(s.Name)
			s.Name = &syntax.Ident{NamePos: s.Name.NamePos, Name: "$" + s.Name.Name}
			value := &syntax.Ident{NamePos: s.Def, Name: s.Name.Name}
			out = append(out, &syntax.AssignStmt{OpPos: s.Def, Op: syntax.EQ, LHS: target, RHS: value})
		}
	}
	return out
}

// reserved are the names of functions that cannot be assigned.
var reserved = []string{loadName, "load", "keep", "compare"}

// target rewrites what is assigned to.
func (w *rewriter) target(x syntax.Expr) syntax.Expr {
	switch x := x.(type) {
	case *syntax.Ident:
		if w.err == nil && (slices.Contains(stopNames, x.Name) || slices.Contains(reserved, x.Name)) {
			w.err = oneLine(w.place(x.NamePos), fmt.Errorf("%s belongs to the stop and cannot be assigned (choose another name)", x.Name))
		}
		w.assigned[x.Name] = true
		return &syntax.IndexExpr{
			X: &syntax.Ident{NamePos: x.NamePos, Name: globalsName}, Lbrack: x.NamePos,
			Y: &syntax.Literal{Token: syntax.STRING, TokenPos: x.NamePos, Raw: `""`, Value: x.Name}, Rbrack: x.NamePos,
		}
	case *syntax.ParenExpr:
		x.X = w.target(x.X)
	case *syntax.TupleExpr:
		for i := range x.List {
			x.List[i] = w.target(x.List[i])
		}
	case *syntax.ListExpr:
		for i := range x.List {
			x.List[i] = w.target(x.List[i])
		}
	}
	return x
}

// place returns a position for an error, without the column if columns have changed.
func (w *rewriter) place(pos syntax.Position) string {
	if w.moved {
		return fmt.Sprintf("line %d: ", pos.Line)
	}
	return fmt.Sprintf("line %d, column %d: ", pos.Line, pos.Col)
}

// missing has hints for parts of Python that Starlark does not have, by what errors begin with.
var missing = map[string]string{
	"got import":         "there is nothing to import; math is defined",
	"got from":           "there is nothing to import; math is defined",
	"got is":             "== compares",
	"got string literal": "there are no f-strings: \"%.3f\" % x",
}

// parseError returns an error of the syntax as one line.
func (w *rewriter) parseError(err error) error {
	if e, ok := errors.AsType[syntax.Error](err); ok {
		hint := ""
		for begin, text := range missing {
			if strings.HasPrefix(e.Msg, begin) {
				hint = " (" + text + ")"
			}
		}
		return oneLine(w.place(e.Pos), errors.New(e.Msg+hint))
	}
	return oneLine("", err)
}

// resolveError returns the first error about names as one line.
func (in *Interpreter) resolveError(err error, w *rewriter) error {
	list, _ := errors.AsType[resolve.ErrorList](err)
	if len(list) == 0 {
		return oneLine("", err)
	}
	e := list[0]
	at := w.place(e.Pos)
	rest, ok := strings.CutPrefix(e.Msg, "undefined: ")
	if !ok {
		return oneLine(at, errors.New(strings.ReplaceAll(e.Msg, "$", "")))
	}
	name, _, _ := strings.Cut(rest, " ")
	names := in.known()
	names = slices.AppendSeq(names, maps.Keys(w.assigned))
	names = slices.AppendSeq(names, maps.Keys(in.promised))
	hint := "out is the tensor of the stop"
	if similar := checkpoint.Similar(name, names, 3); len(similar) > 0 {
		hint = "similar: " + strings.Join(similar, ", ")
	}
	return oneLine(at, fmt.Errorf("name %s is not defined (%s)", name, hint))
}
