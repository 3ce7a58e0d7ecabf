package hints

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// timestep reads the time, or the guidance scale, back from a sinusoidal embedding.
func (s *search) timestep() {
	const n = 256
	sinusoids := s.isInput() && strings.Contains(s.Name.Module, "embedder") || strings.HasSuffix(s.Name.Module, ".time_proj")
	if !sinusoids || s.want.last() != n || len(s.want.v) > 2*n {
		return
	}
	row := len(s.want.v)/n - 1 // the second row is of reference images
	if row > 0 && distance(s.got.row(0), s.want.row(0)) >= 0.7*s.off {
		row = 0
	}
	gotRow, wantRow := s.got.row(row), s.want.row(row)
	decode := func(t tensor) float64 { // the slowest frequency turns less than once
		return math.Atan2(t.v[n-1], t.v[n/2-1]) / math.Exp(-math.Log(10000)*(n/2-1)/(n/2))
	}
	got, want := decode(gotRow), decode(wantRow)
	about := func(a, b float64) bool { return math.Abs(a-b) <= 1e-3*max(1, math.Abs(b)) }
	swapped := tensor{v: slices.Concat(wantRow.v[n/2:], wantRow.v[:n/2])}
	guidance := (s.Name.Call > 0 || strings.Contains(s.Name.Module, "guidance_embedder")) &&
		(about(got, 1000*s.Guidance) || about(want, 1000*s.Guidance))
	say := func(key, text string, args ...any) {
		s.say(key, "the embedded value is %.4g, the reference's %.4g%s", got, want, fmt.Sprintf(text, args...))
	}
	switch {
	case denormals(gotRow) > 0 && denormals(wantRow) == 0:
		s.say("out of bounds", "the embedded value is a denormal number such as 1.4e-45, the reference's %.4g: an index is out of bounds, "+
			"such as a timestep for a step's index", want)
	case distance(swapped, gotRow) <= 0.1*s.off:
		s.say("sinusoid order", "sine and cosine are swapped in the timestep embedding")
	case row > 0 || s.Name.Call > 0 && about(want, 0):
		say("time of references", ": the time of reference images")
	case guidance && about(got*1000, want):
		say("guidance scale", ": the guidance scale is not multiplied by 1000 as timesteps are")
	case guidance:
		say("guidance", ": the guidance scale")
	case about(got*1000, want):
		say("sigma for timestep", ": a sigma (0 to 1) instead of the timestep (0 to 1000)")
	case s.slowly(gotRow, 1000*want):
		got = 1000 * want // whose slowest angle may exceed a turn
		say("timestep for sigma", ": it is multiplied by 1000 once too often")
	case about(got, float64(s.Name.Step)):
		say("index for timestep", ": the step's index instead of its timestep")
	case about(got, 1000-want):
		say("time reversed", ": time runs the other way, from 1000 to 0")
	default:
		if timesteps := s.Tensor(hooks.Name{Module: "timesteps", Step: -1}); timesteps != nil {
			for i, t := range hostTensor("", timesteps).v {
				if i != s.Name.Step && (about(got, t) || about(got, 1000-t)) {
					say("timestep of another step", ": that of step %d at step %d", i, s.Name.Step)
					return
				}
			}
		}
		say("timestep", "")
	}
}

// slowly reports whether a row embeds a value: by its slower half of frequencies, since the value is
// known to a few digits.
func (s *search) slowly(row tensor, value float64) bool {
	n := row.last()
	embedded := hostTensor("", nn.TimestepEmbedding(float32(value), n))
	off := 0.0
	for _, from := range []int{n / 4, 3 * n / 4} {
		d := distance(embedded.columns(from, from+n/4), tensor{v: row.v[from : from+n/4]})
		off += d * d
	}
	return math.Sqrt(off) <= 0.05*math.Sqrt(float64(n/4))
}

// denormals counts the denormal numbers in float32.
func denormals(t tensor) (n int) {
	const smallestNormal = 0x1p-126
	for _, x := range t.v {
		if x != 0 && math.Abs(x) < smallestNormal {
			n++
		}
	}
	return n
}

// outOfBounds looks for denormal numbers that make the error: what MLX reads after the end of an
// array.
func (s *search) outOfBounds() {
	if denormals(s.got) == 0 || denormals(s.want) > 0 {
		return
	}
	fixed, at, n := s.got.apply(identity), -1, 0
	for i, x := range s.got.v {
		if denormals(tensor{v: []float64{x}}) > 0 {
			if fixed.v[i] = s.want.v[i]; at < 0 {
				at = i
			}
			n++
		}
	}
	if distance(fixed, s.want) <= 0.1*s.off {
		s.say("out of bounds", "%d values of ours are denormal numbers, the first %.4g at %d, where the reference has %.4g: an index is "+
			"out of bounds, which MLX does not check", n, s.got.v[at], at, s.want.v[at])
	}
}

// schedule compares sigmas or timesteps.
func (s *search) schedule() {
	if s.Name.Module != "sigmas" && s.Name.Module != "timesteps" {
		return
	}
	n := len(s.want.v)
	for by, ours := range map[int][]float64{1: s.got.v[:n-1], -1: s.got.v[1:]} {
		ref := s.want.v[max(0, by) : n+min(0, by)]
		if n > 2 && distance(tensor{v: ours}, tensor{v: ref}) <= 1e-4*s.off {
			s.say("off by one step", "%s is the reference's, %d step off: an index is off by one", s.Name.Module, by)
			return
		}
	}
	scale := 1.0
	if s.Name.Module == "timesteps" {
		scale = 1000
	}
	between := func(x float64) bool { return x > 1e-6 && x < 1-1e-6 }
	var shifts, stretches []float64
	for i := range n {
		g, w := s.got.v[i]/scale, s.want.v[i]/scale
		if between(w) && between(g) {
			shifts = append(shifts, g*(1-w)/(w*(1-g)))
		}
		if between(w) {
			stretches = append(stretches, (1-g)/(1-w))
		}
	}
	constant := func(v []float64) bool { return slices.Max(v)-slices.Min(v) <= 1e-3*slices.Max(v) }
	switch {
	// shift·s / (1 + (shift-1)·s) of one schedule is that of another with the ratio of both shifts.
	case len(shifts) > 0 && constant(shifts):
		or := ""
		if len(shifts) == 1 {
			or = ", or it is stretched to another end (shift_terminal)"
		}
		s.say("schedule shift", "the schedule is shifted %.4g times as much as the reference's (shift, or the mu of dynamic shifting)%s",
			shifts[0], or)
	// 1 - (1-s)·k of one schedule is that of another with another last sigma.
	case len(stretches) > 1 && constant(stretches):
		s.say("schedule end", "the schedule ends at another sigma than the reference's (shift_terminal): distances from 1 are %.4g "+
			"times as large", stretches[0])
	}
}

// schedulerStep compares the step that was made of the latents with the reference's.
func (s *search) schedulerStep() {
	if s.Name.Module != "latents" && s.Name.Module != "latents.stepped" {
		return
	}
	i := s.Name.Step
	pred, _ := s.tensor("noise_pred", hooks.Point{})
	sigmas, _ := s.value("sigmas")
	for _, n := range []hooks.Name{
		{Module: "latents", Step: i - 1}, {Module: "latents.start", Step: -1}, {Module: "latents.init", Step: -1},
	} {
		before, _ := s.at(n)
		if len(pred.v) != len(s.want.v) || len(before.v) != len(s.want.v) {
			continue
		}
		step := func(y tensor) (k float64, moved tensor) {
			k = dot(y.with(before, minus), pred) / dot(pred, pred)
			return k, before.with(pred, func(x, v float64) float64 { return x + k*v })
		}
		want, moved := step(s.want)
		if !s.isReference(moved) {
			continue
		}
		got, moved := step(s.got)
		if !s.fits(moved) {
			continue
		}
		text := fmt.Sprintf("the scheduler adds %.6g times noise_pred@%d, the reference %.6g times", got, i, want)
		for a, from := range sigmas.v {
			for b, to := range sigmas.v {
				if a != b && math.Abs(to-from-got) <= 1e-4*math.Abs(got) {
					s.say("scheduler step", "%s: ours goes from sigma %d to sigma %d at step %d", text, a, b, i)
					return
				}
			}
		}
		s.say("scheduler step", "%s", text)
		return
	}
}

// positions names the first token whose position ids differ: [tokens, axes], or [axes, 1, tokens]
// in text encoders.
func (s *search) positions() {
	key, n, got, want := s.Name.Point.Key, s.want.last(), s.got, s.want
	switch {
	case !s.isInput():
		return
	case len(s.want.shape) == 3 && strings.HasPrefix(s.Name.Module, "text_encoder") &&
		(strings.HasSuffix(s.Name.Module, ".rotary_emb") && key == "1" || key == "position_ids"):
		axes := len(want.v) / n
		got, want = got.reshape(axes, n).permute(1, 0), want.reshape(axes, n).permute(1, 0)
	case n > 8 || len(want.v) == n || !strings.HasSuffix(s.Name.Module, "pos_embed") && !strings.HasSuffix(key, "_ids"):
		return
	}
	for token := range len(want.v) / want.last() {
		if g, w := got.row(token), want.row(token); distance(g, w) > 0.01 {
			s.say("positions", "token %d is at position %.4g, in the reference at %.4g", token, g.v, w.v)
			return
		}
	}
}

// angles names the first angle that differs in a rotary table: [L, D/2, 2], or cosines and, with
// key 1, sines [.., L, D].
func (s *search) angles() {
	module, key, shape := s.Name.Module, s.Name.Point.Key, s.want.shape
	table := s.isOutput() && (strings.HasSuffix(module, "pos_embed") || strings.HasSuffix(module, "rotary_emb"))
	if !table && !strings.HasPrefix(key, "image_rotary_emb.") || len(shape) < 2 {
		return
	}
	paired := len(shape) == 3 && s.want.last() == 2
	columns := s.want.last()
	if paired {
		columns = shape[1]
	}
	angle := func(t tensor, i int) float64 {
		switch {
		case paired:
			return math.Atan2(t.v[2*i+1], t.v[2*i])
		case strings.HasSuffix(key, "1"):
			return math.Asin(t.v[i])
		}
		return math.Acos(t.v[i])
	}
	count := len(s.want.v)
	if paired {
		count /= 2
	}
	for i := range count {
		if ours, ref := angle(s.got, i), angle(s.want, i); math.Abs(ours-ref) > 1e-2 {
			s.say("rope angles", "RoPE: pair %d of token %d is turned by %.4g, in the reference by %.4g: other positions, theta, or axes "+
				"(the first pair of each axis is turned by the position)", i%columns, i/columns, ours, ref)
			return
		}
	}
}

// hiddenState matches the modules whose outputs prompt embeddings are made of.
var hiddenState = regexp.MustCompile(`^text_encoder(_\d+)?(\.[a-z_]+)*(\.\d+)?$`)

// embeddings finds the hidden states that prompt embeddings [T, D] consist of, next to each
// other in D, and the token that pooled embeddings [D] are of.
func (s *search) embeddings() {
	prompt, what, _ := strings.Cut(s.Name.Module, ".")
	call, ok := map[string]int{"prompt": 0, "negative": 1}[prompt]
	key := map[string]string{"embeds": "hidden layer", "pooled_embeds": "pooled row"}[what]
	if !ok || key == "" {
		return
	}
	widths := map[int][]tensor{}
	for _, name := range s.Names {
		n, err := hooks.ParseName(name)
		if err != nil || n.Call != call || n.Point != (hooks.Point{}) || !hiddenState.MatchString(n.Module) {
			continue
		}
		if a := s.Tensor(n); a.Size() <= maxValues && a.Ndim() > 1 && s.want.last()%a.Dim(-1) == 0 {
			t := hostTensor(n.Module, a)
			widths[t.last()] = append(widths[t.last()], t)
		}
	}
	for d, states := range widths {
		source := func(part tensor) string {
			for _, t := range states {
				// Hidden states may begin with more tokens than embeddings, and end with the same.
				last := len(t.v) - len(part.v)
				for at := last; at >= 0 && (at == last || what == "pooled_embeds"); at -= d {
					if distance(part, tensor{v: t.v[at:]}) <= 1e-3*norm(part) {
						return fmt.Sprintf("%s from token %d", t.name, at/d)
					}
				}
			}
			return ""
		}
		var ours, refs []string
		for at := 0; at < s.want.last(); at += d {
			ours = append(ours, source(s.got.columns(at, at+d)))
			refs = append(refs, source(s.want.columns(at, at+d)))
		}
		if !slices.Equal(ours, refs) && !slices.Contains(ours, "") {
			s.say(key, "ours is %s, the reference %s", strings.Join(ours, ", "), strings.Join(refs, ", "))
		}
	}
}

// guidance compares the factors with which predictions for prompt and negative prompt are
// combined to one, where they are two calls of the transformer. Rescaling changes the factors of
// each token, but not their ratio.
func (s *search) guidance() {
	shape := s.want.shape
	if s.Name.Module != "noise_pred" || s.Name.Step < 0 || len(shape) != 4 || shape[0] != 1 {
		return
	}
	var predictions [2]tensor // for prompt and negative prompt, [1, L, D]
	tokens := patches
	for call := range predictions {
		a := s.Tensor(hooks.Name{Module: "transformer", Step: s.Name.Step, Call: call})
		if a == nil || a.Ndim() != 3 || a.Size() < len(s.want.v) || a.Dim(2) != shape[1] && a.Dim(2) != 4*shape[1] {
			return
		}
		if a.Dim(2) == shape[1] {
			tokens = func(t tensor) tensor { return t.permute(0, 2, 3, 1) }
		}
		predictions[call] = hostTensor("", a.Slice(1, 0, len(s.want.v)/a.Dim(2))) // the tokens of reference images follow
	}
	ours, fitted := s.combination(tokens(s.got), predictions)
	ref, there := s.combination(tokens(s.want), predictions)
	if !fitted || !there {
		return
	}
	key, constant := "norm rescale", true
	for i := range ours {
		a, b := ours[i], ref[i]
		if math.Abs(a[0]*b[1]-a[1]*b[0]) > 1e-2*math.Hypot(a[0], a[1])*math.Hypot(b[0], b[1]) {
			key = "guidance"
		}
		constant = constant && math.Abs(a[0]*ref[0][0]-b[0]*ours[0][0]) <= 1e-3*math.Abs(b[0]*ours[0][0])
	}
	if key == "guidance" || !constant {
		s.say(key, "ours is %.4g·prompt + %.4g·negative for the first token, the reference %.4g·prompt + %.4g·negative, with a "+
			"guidance scale of %g", ours[0][0], ours[0][1], ref[0][0], ref[0][1], s.Guidance)
	}
}

// combination returns the factors of the two predictions p for each row of y = a·p[0] + b·p[1],
// by least squares. It is ok if what is left is far smaller than the error.
func (s *search) combination(y tensor, p [2]tensor) (factors [][2]float64, ok bool) {
	left := 0.0
	for i := range len(y.v) / y.last() {
		y, p, n := y.row(i), p[0].row(i), p[1].row(i)
		pp, pn, nn, yp, yn := dot(p, p), dot(p, n), dot(n, n), dot(y, p), dot(y, n)
		det := pp*nn - pn*pn
		a, b := (yp*nn-yn*pn)/det, (yn*pp-yp*pn)/det
		off := distance(p.with(n, func(p, n float64) float64 { return a*p + b*n }), y)
		left += off * off
		factors = append(factors, [2]float64{a, b})
	}
	return factors, math.Sqrt(left) <= 0.1*s.off
}

// patches takes latents [1, C, h, w] apart into 2x2 patches [h/2·w/2, C·2·2].
func patches(t tensor) tensor {
	c, h, w := t.shape[1], t.shape[2]/2, t.shape[3]/2
	return t.reshape(c, h, 2, w, 2).permute(1, 3, 0, 2, 4).reshape(h*w, 4*c)
}

// latents looks for patches of latents that are packed in another order, and for other
// statistics of latents: scaling_factor and shift_factor, latents_mean and latents_std, or those
// of bn.
func (s *search) latents() {
	module, n := s.Name.Module, len(s.want.shape)
	var views [][2]tensor // ours and the reference with features along axis 1
	is := func(names ...string) bool { return slices.Contains(names, module) }
	switch {
	case n == 3 && s.want.last()%4 == 0 && (is("transformer") || strings.HasSuffix(module, "x_embedder") ||
		strings.HasSuffix(module, ".img_in") || strings.HasSuffix(module, ".proj_out")):
		views = append(views, [2]tensor{s.got.rows(), s.want.rows()})
	case n == 4 && is("latents.reference", "latents.image", "vae.decode.in", "latents", "noise_pred"):
		views = append(views, [2]tensor{s.got, s.want})
		if x := s.want.shape; x[0] == 1 && x[2]%2 == 0 && x[3]%2 == 0 {
			views = append(views, [2]tensor{patches(s.got), patches(s.want)})
		}
	default:
		return
	}
	sameValues := s.sameValues()
	for _, v := range views {
		if o, ok := s.orderAlong(v[1], v[0], 1); sameValues && ok && o.key == "interleaved" {
			s.say("packing order", "the features of each patch are in another order than channel, row, column")
			return
		}
		if len(s.want.v)/v[1].shape[1] < 4 || !is("latents.reference", "latents.image", "vae.decode.in") {
			continue
		}
		if y, _, _ := affine(v[1], v[0], 1, true); distance(y, v[0]) <= 0.1*s.off {
			s.say("latent scaling", "ours is the reference but for a factor and an offset of each of %d channels: the scaling of "+
				"latents is missing, applied twice, or inverted (scaling_factor and shift_factor, latents_mean and latents_std, or bn)",
				v[1].shape[1])
			return
		}
	}
}

// pixels looks for images that are normalised or resized in another way.
func (s *search) pixels() {
	var view func(t tensor) tensor // [.., colour, ..] with colours along axis 1
	switch n := len(s.want.shape); {
	case s.Name.Module == "vision.pixel_values" && n == 2 && s.want.last()%3 == 0:
		view = func(t tensor) tensor { return t.reshape(t.shape[0], 3, t.last()/3) }
	case s.Name.Module == "vae.encode.in" && n == 4:
		view = func(t tensor) tensor { return t }
	case (s.Name.Module == "image.in" || s.Name.Module == "image.condition") && n == 3:
		view = tensor.rows
	default:
		return
	}
	if s.sameValues() {
		return
	}
	got, want := view(s.got), view(s.want)
	fitted, _, _ := affine(want, got, 1, true)
	_, std := moments(got.v)
	switch off := distance(fitted, got); {
	case off <= 0.1*s.off:
		s.say("normalisation", "ours is the reference but for a factor and an offset of each colour: image_mean, image_std or "+
			"rescale_factor differ")
	case off <= 0.5*std*math.Sqrt(float64(len(got.v))):
		s.say("resampling", "ours resembles the reference: images are resized with another filter (bicubic or Lanczos), "+
			"or without antialias, or come from another copy")
	}
}
