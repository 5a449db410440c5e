package credits

import "testing"

func TestAStrangerMayMatterLessAndNotMore(t *testing.T) {
	for _, test := range []struct {
		claims       Claims
		says, counts Priority
		tenant       uint32
	}{
		{Untrusted, 0, Default, 0}, {Untrusted, 255, 255, 0}, {Priorities, 0, 0, 0}, {Trusted, 0, 0, 7},
	} {
		ask, claimed := test.claims.Judge(Ask{Priority: test.says, Tenant: 7}, Known{})
		if ask.Priority != test.counts || claimed != ask.Priority || ask.Tenant != test.tenant {
			t.Errorf("%+v: %+v, %d", test, ask, claimed)
		}
	}
}

func TestWhatTheServerKnowsCountsWhateverIsTrusted(t *testing.T) {
	tenant, priority := uint32(3), Priority(9)
	for _, claims := range []Claims{Untrusted, Priorities, Trusted} {
		for _, says := range []Priority{0, 9} {
			ask, claimed := claims.Judge(Ask{Priority: says, Tenant: 7}, Known{Tenant: &tenant, Priority: &priority})
			if ask.Priority != 9 || claimed != says || ask.Tenant != 3 {
				t.Errorf("%d: %+v, %d", claims, ask, claimed)
			}
		}
	}
}
