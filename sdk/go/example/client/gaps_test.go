package main

import (
	"testing"
	"time"
)

func TestACallMeetsAGapThatItOverlaps(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	gaps := []gap{{at(10), at(12)}, {at(20), at(25)}}
	for _, test := range []struct {
		from, to int
		meets    bool
	}{
		{0, 9, false}, {0, 10, true}, {11, 11, true}, {12, 15, true}, {13, 19, false}, {5, 30, true}, {24, 40, true},
		{26, 40, false},
	} {
		if meets(gaps, at(test.from), at(test.to)) != test.meets {
			t.Errorf("from %d to %d", test.from, test.to)
		}
	}
	if meets(nil, at(0), at(1)) {
		t.Error("there is none")
	}
}
