package lora

// Changes says whether a parameter of a component is changed.
func (s *Set) Changes(component, parameter string) bool {
	return len(s.updates[component][parameter]) > 0
}
