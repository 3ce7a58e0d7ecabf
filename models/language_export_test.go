package models

import "github.com/gomflux/gomflux/textgen"

// LostQuote is lostQuote, for tests.
var LostQuote = lostQuote

// Encode returns the ids of a conversation.
func (m *LanguageModel) Encode(messages []textgen.Message) ([]int32, error) {
	return m.encode(messages, false)
}
