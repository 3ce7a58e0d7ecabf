package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.starlark.net/syntax"
)

// A rewriter changes the tree of a source, so that its operators and methods become calls of
// builtins that check their operands, and its global variables keys of [globals].
type rewriter struct {
	powers   map[position]bool    // the operators // that are **
	moved    bool                 // whether columns differ from those of the source
	assigned map[string]bool      // names of global variables
	checked  map[syntax.Expr]bool // products without operators **
	function bool                 // inside a function, whose variables are local
	err      error                // the first error
}

// Builtins that only rewritten source calls.
const (
	callOperator = "$operator" // op, x, y
	callAugment  = "$augment"  // op, x, y: as x += y
	callSetItem  = "$setitem"  // op, x, key, y: as x[key] += y
	callTruth    = "$truth"    // x, which must have a truth value
	callTuple    = "$tuple"    // a tuple whose size is checked
	callLast     = "$last"     // returns its last argument
	callAttr     = "$attr"     // x, name: a method whose result may be large
	callResult   = "$result"   // the value of an expression statement
)

func (w *rewriter) fail(pos syntax.Position, format string, args ...any) {
	if w.err == nil {
		w.err = errors.New(w.place(pos) + fmt.Sprintf(format, args...))
	}
}

func call(pos syntax.Position, name string, args ...syntax.Expr) syntax.Expr {
	return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: pos, Name: name}, Lparen: pos, Args: args, Rparen: pos}
}

func text(pos syntax.Position, s string) syntax.Expr {
	return &syntax.Literal{Token: syntax.STRING, TokenPos: pos, Raw: "\"\"", Value: s}
}

func (w *rewriter) file(f *syntax.File) { f.Stmts = w.stmts(f.Stmts) }

func (w *rewriter) stmts(list []syntax.Stmt) (out []syntax.Stmt) {
	for _, s := range list {
		out = append(out, w.stmt(s)...)
	}
	return out
}

// stmt returns the statements that replace a statement.
func (w *rewriter) stmt(s syntax.Stmt) []syntax.Stmt {
	switch s := s.(type) {
	case *syntax.ExprStmt:
		if s.X = w.expr(s.X); !w.function {
			s.X = call(syntax.Start(s.X), callResult, s.X)
		}
	case *syntax.AssignStmt:
		return []syntax.Stmt{w.assign(s)}
	case *syntax.IfStmt:
		s.Cond = w.truth(s.Cond)
		s.True, s.False = w.stmts(s.True), w.stmts(s.False)
	case *syntax.WhileStmt:
		s.Cond, s.Body = w.truth(s.Cond), w.stmts(s.Body)
	case *syntax.ForStmt:
		s.X = w.expr(s.X)
		s.Vars = w.target(s.Vars)
		s.Body = w.stmts(s.Body)
	case *syntax.ReturnStmt:
		if s.Result != nil {
			s.Result = w.expr(s.Result)
		}
	case *syntax.DefStmt:
		return w.def(s)
	}
	return []syntax.Stmt{s}
}

// def rewrites a function. A global one is assigned to its name after its definition, which has
// another name.
func (w *rewriter) def(s *syntax.DefStmt) []syntax.Stmt {
	s.Params = w.params(s.Params)
	outer := w.function
	w.function = true
	s.Body = w.stmts(s.Body)
	w.function = outer
	if rest := variadic(s.Params); rest != nil {
		check := &syntax.ExprStmt{X: call(s.Def, callTuple, rest)}
		s.Body = append([]syntax.Stmt{check}, s.Body...)
	}
	if w.function {
		return []syntax.Stmt{s}
	}
	target := w.target(s.Name)
	s.Name = &syntax.Ident{NamePos: s.Name.NamePos, Name: "$" + s.Name.Name}
	value := &syntax.Ident{NamePos: s.Def, Name: s.Name.Name}
	return []syntax.Stmt{s, &syntax.AssignStmt{OpPos: s.Def, Op: syntax.EQ, LHS: target, RHS: value}}
}

// params rewrites the defaults of parameters.
func (w *rewriter) params(list []syntax.Expr) []syntax.Expr {
	for _, p := range list {
		if b, ok := p.(*syntax.BinaryExpr); ok && b.Op == syntax.EQ {
			b.Y = w.expr(b.Y)
		}
	}
	return list
}

// variadic returns a use of the parameter *args, or nil.
func variadic(params []syntax.Expr) syntax.Expr {
	for _, p := range params {
		if u, ok := p.(*syntax.UnaryExpr); ok && u.Op == syntax.STAR && u.X != nil {
			return &syntax.Ident{NamePos: u.OpPos, Name: u.X.(*syntax.Ident).Name}
		}
	}
	return nil
}

// target rewrites what is assigned to.
func (w *rewriter) target(x syntax.Expr) syntax.Expr {
	switch x := x.(type) {
	case *syntax.Ident:
		if w.function {
			return x
		}
		if slices.Contains(stopNames, x.Name) || slices.Contains(reserved, x.Name) {
			w.fail(x.NamePos, "%s belongs to the stop and cannot be assigned (choose another name)", x.Name)
		}
		w.assigned[x.Name] = true
		return &syntax.IndexExpr{
			X: &syntax.Ident{NamePos: x.NamePos, Name: globalsName}, Lbrack: x.NamePos, Y: text(x.NamePos, x.Name), Rbrack: x.NamePos,
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
	case *syntax.IndexExpr:
		x.X, x.Y = w.expr(x.X), w.expr(x.Y)
	case *syntax.DotExpr:
		x.X = w.expr(x.X)
	}
	return x
}

// reserved are the names of functions that cannot be assigned.
var reserved = []string{loadName, "load", "keep", "compare"}

// operators are the operators of augmented assignments.
var operators = map[syntax.Token]syntax.Token{
	syntax.PLUS_EQ: syntax.PLUS, syntax.MINUS_EQ: syntax.MINUS, syntax.STAR_EQ: syntax.STAR,
	syntax.SLASH_EQ: syntax.SLASH, syntax.SLASHSLASH_EQ: syntax.SLASHSLASH, syntax.PERCENT_EQ: syntax.PERCENT,
	syntax.AMP_EQ: syntax.AMP, syntax.PIPE_EQ: syntax.PIPE, syntax.CIRCUMFLEX_EQ: syntax.CIRCUMFLEX,
	syntax.LTLT_EQ: syntax.LTLT, syntax.GTGT_EQ: syntax.GTGT,
}

func (w *rewriter) assign(s *syntax.AssignStmt) syntax.Stmt {
	s.RHS = w.expr(s.RHS)
	token, augmented := operators[s.Op]
	if !augmented {
		s.LHS = w.target(s.LHS)
		return s
	}
	op := token.String()
	if w.powers[position{s.OpPos.Line, s.OpPos.Col}] {
		op = "**"
	}
	left := s.LHS
	for {
		p, ok := left.(*syntax.ParenExpr)
		if !ok {
			break
		}
		left = p.X
	}
	switch x := left.(type) {
	case *syntax.Ident:
		use := &syntax.Ident{NamePos: x.NamePos, Name: x.Name}
		s.Op, s.LHS, s.RHS = syntax.EQ, w.target(x), call(s.OpPos, callAugment, text(s.OpPos, op), use, s.RHS)
	case *syntax.IndexExpr:
		return &syntax.ExprStmt{X: call(s.OpPos, callSetItem, text(s.OpPos, op), w.expr(x.X), w.expr(x.Y), s.RHS)}
	default:
		w.fail(s.OpPos, "%v assigns to a variable or an element", s.Op)
	}
	return s
}

// truth rewrites an expression whose truth decides something.
func (w *rewriter) truth(x syntax.Expr) syntax.Expr {
	return call(syntax.Start(x), callTruth, w.expr(x))
}

func (w *rewriter) exprs(list []syntax.Expr) []syntax.Expr {
	for i := range list {
		list[i] = w.expr(list[i])
	}
	return list
}

func (w *rewriter) expr(x syntax.Expr) syntax.Expr {
	switch x := x.(type) {
	case *syntax.Ident:
		if strings.HasPrefix(x.Name, "$") {
			w.fail(x.NamePos, "name %s", x.Name)
		}
	case *syntax.ParenExpr:
		x.X = w.expr(x.X)
	case *syntax.CallExpr:
		w.keeps(x)
		x.Fn = w.expr(x.Fn)
		w.args(x.Args)
	case *syntax.DotExpr:
		x.X = w.expr(x.X)
		if guarded[x.Name.Name] {
			return call(x.Dot, callAttr, x.X, text(x.NamePos, x.Name.Name))
		}
	case *syntax.IndexExpr:
		x.X, x.Y = w.expr(x.X), w.expr(x.Y)
	case *syntax.SliceExpr:
		x.X = w.expr(x.X)
		for _, p := range []*syntax.Expr{&x.Lo, &x.Hi, &x.Step} {
			if *p != nil {
				*p = w.expr(*p)
			}
		}
	case *syntax.ListExpr:
		w.exprs(x.List)
	case *syntax.TupleExpr:
		w.exprs(x.List)
		return call(syntax.Start(x), callTuple, x)
	case *syntax.DictExpr:
		w.exprs(x.List)
	case *syntax.DictEntry:
		x.Key, x.Value = w.expr(x.Key), w.expr(x.Value)
	case *syntax.CondExpr:
		x.Cond, x.True, x.False = w.truth(x.Cond), w.expr(x.True), w.expr(x.False)
	case *syntax.LambdaExpr:
		return w.lambda(x)
	case *syntax.Comprehension:
		w.comprehension(x)
	case *syntax.UnaryExpr:
		if x.Op == syntax.NOT {
			x.X = w.truth(x.X)
		} else {
			x.X = w.expr(x.X)
		}
	case *syntax.BinaryExpr:
		return w.binary(x)
	}
	return x
}

// keeps makes the name of a call keep("name", x) known.
func (w *rewriter) keeps(x *syntax.CallExpr) {
	if f, ok := x.Fn.(*syntax.Ident); !ok || f.Name != "keep" || len(x.Args) == 0 {
		return
	}
	if name, ok := x.Args[0].(*syntax.Literal); ok && name.Token == syntax.STRING {
		w.assigned[name.Value.(string)] = true
	}
}

// args rewrites the arguments of a call, of which some have names or a star.
func (w *rewriter) args(list []syntax.Expr) {
	for i, x := range list {
		switch x := x.(type) {
		case *syntax.BinaryExpr:
			if x.Op == syntax.EQ {
				x.Y = w.expr(x.Y)
				continue
			}
		case *syntax.UnaryExpr:
			if x.Op == syntax.STAR || x.Op == syntax.STARSTAR {
				x.X = w.expr(x.X)
				continue
			}
		}
		list[i] = w.expr(x)
	}
}

func (w *rewriter) lambda(x *syntax.LambdaExpr) syntax.Expr {
	x.Params = w.params(x.Params)
	outer := w.function
	w.function = true
	x.Body = w.expr(x.Body)
	w.function = outer
	if rest := variadic(x.Params); rest != nil {
		x.Body = call(x.Lambda, callLast, call(x.Lambda, callTuple, rest), x.Body)
	}
	return x
}

// comprehension rewrites a comprehension, whose variables are local.
func (w *rewriter) comprehension(x *syntax.Comprehension) {
	x.Body = w.expr(x.Body)
	for _, c := range x.Clauses {
		switch c := c.(type) {
		case *syntax.ForClause:
			outer := w.function
			c.X = w.expr(c.X)
			w.function = true
			c.Vars = w.target(c.Vars)
			w.function = outer
		case *syntax.IfClause:
			c.Cond = w.truth(c.Cond)
		}
	}
}

// binary rewrites an operator.
func (w *rewriter) binary(x *syntax.BinaryExpr) syntax.Expr {
	if isProduct(x.Op) && len(w.powers) > 0 {
		if y := w.product(x); y != nil {
			return w.expr(y)
		}
	}
	switch x.Op {
	case syntax.AND, syntax.OR:
		x.X, x.Y = w.truth(x.X), w.expr(x.Y)
		return x
	case opPower:
		return call(x.OpPos, callOperator, text(x.OpPos, "**"), w.expr(x.X), w.expr(x.Y))
	}
	return call(x.OpPos, callOperator, text(x.OpPos, x.Op.String()), w.expr(x.X), w.expr(x.Y))
}

// opPower is the operator ** in the tree. Starlark's own parser does not know it.
const opPower = syntax.STARSTAR

func isProduct(op syntax.Token) bool {
	return op == syntax.STAR || op == syntax.SLASH || op == syntax.SLASHSLASH || op == syntax.PERCENT
}

// product returns a product with its operators **, which were parsed as //, in their right order:
// ** comes before -, * and /, and from right to left. It returns nil if there are no such operators.
func (w *rewriter) product(x *syntax.BinaryExpr) syntax.Expr {
	var operands []syntax.Expr
	var ops []*syntax.BinaryExpr // from right to left
	found := false
	var left syntax.Expr = x
	for {
		b, ok := left.(*syntax.BinaryExpr)
		if !ok || !isProduct(b.Op) || w.checked[b] {
			break
		}
		w.checked[b] = true
		found = found || w.powers[position{b.OpPos.Line, b.OpPos.Col}]
		operands, ops, left = append(operands, b.Y), append(ops, b), b.X
	}
	if !found {
		return nil
	}
	operands = append(operands, left)
	slices.Reverse(operands)
	slices.Reverse(ops)
	at := 0
	factor := func() syntax.Expr { // a chain of operators **
		first := at
		for at < len(ops) && w.powers[position{ops[at].OpPos.Line, ops[at].OpPos.Col}] {
			at++
		}
		out := operands[at]
		for i := at - 1; i >= first; i-- {
			out = raise(operands[i], out, ops[i].OpPos)
		}
		return out
	}
	out := factor()
	for at < len(ops) {
		op := ops[at]
		at++
		out = &syntax.BinaryExpr{X: out, OpPos: op.OpPos, Op: op.Op, Y: factor()}
		w.checked[out] = true
	}
	return out
}

// raise returns x ** y, where a sign before x applies to the result.
func raise(x, y syntax.Expr, pos syntax.Position) syntax.Expr {
	if u, ok := x.(*syntax.UnaryExpr); ok && u.Op != syntax.NOT {
		return &syntax.UnaryExpr{OpPos: u.OpPos, Op: u.Op, X: raise(u.X, y, pos)}
	}
	return &syntax.BinaryExpr{X: x, OpPos: pos, Op: opPower, Y: y}
}
