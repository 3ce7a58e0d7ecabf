package models

// LostQuote is lostQuote, for tests.
var LostQuote = lostQuote
