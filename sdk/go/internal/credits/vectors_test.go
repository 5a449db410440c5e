package credits

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// vectors are the cases of vectors/rpc/headers.json, which the Rust layers are held to as well.
type vectors struct {
	Ask struct {
		Read []struct {
			Name, Value string
			Ask         *askCase
		}
		Write []struct {
			Name, Value string
			Ask         askCase
		}
	} `json:"tidegate-ask"`
	Grant struct {
		Read []struct {
			Name, Value string
			Grant       *grantCase
		}
		Write []struct {
			Name, Value string
			Grant       grantCase
		}
	} `json:"tidegate-grant"`
	Client struct {
		Read []struct {
			Name, Value string
			Client      *string
		}
		Write []struct{ Name, Value, Client string }
	} `json:"tidegate-client"`
	Shed struct {
		Write []struct{ Name, Value, Reason string }
	} `json:"tidegate-shed"`
	Pushback struct {
		Read []struct {
			Name, Value string
			Ms          *int64
		}
	} `json:"grpc-retry-pushback-ms"`
	Level struct {
		Parts []struct {
			Level    uint32
			Priority Priority
			Parts    uint32
		}
		Sent []struct {
			Level    uint32
			Priority Priority
			Carry    uint32
			Sent     string
		}
	}
}

type askCase struct {
	Demand    uint32
	Exact     bool
	Credited  bool
	Priority  Priority
	Tenant    uint32
	Budget    *time.Duration `json:"budget_ns"`
	RoundTrip time.Duration  `json:"round_trip_ns"`
}

func (c *askCase) ask() Ask {
	ask := Ask{
		Aware: true, Demand: c.Demand, Exact: c.Exact, Credited: c.Credited, Priority: c.Priority, Tenant: c.Tenant,
		Budget: -1, RoundTrip: c.RoundTrip,
	}
	if c.Budget != nil {
		ask.Budget = *c.Budget
	}
	return ask
}

type grantCase struct {
	Window     uint32
	Level      uint32
	Lease      time.Duration `json:"lease_ns"`
	ServerTime time.Duration `json:"server_time_ns"`
	Instance   uint64
}

func (c *grantCase) grant() Grant {
	return Grant{
		Window: c.Window, Level: LevelFromWire(c.Level), Lease: c.Lease, ServerTime: c.ServerTime, Instance: c.Instance,
	}
}

func readVectors(t *testing.T) *vectors {
	text, err := os.ReadFile("../../../../vectors/rpc/headers.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases vectors
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return &cases
}

func TestAsksAreAsTheVectorsSay(t *testing.T) {
	cases := readVectors(t).Ask
	for _, test := range cases.Read {
		ask, known := ReadAsk(test.Value)
		if known != (test.Ask != nil) || known && ask != test.Ask.ask() {
			t.Errorf("%s: %q reads as %+v, %v", test.Name, test.Value, ask, known)
		}
	}
	for _, test := range cases.Write {
		ask := test.Ask.ask()
		if value := ask.Value(); value != test.Value {
			t.Errorf("%s: %q is not %q", test.Name, value, test.Value)
		}
	}
	if len(cases.Read) < 40 || len(cases.Write) < 8 {
		t.Error("cases are missing")
	}
}

func TestGrantsAreAsTheVectorsSay(t *testing.T) {
	cases := readVectors(t).Grant
	for _, test := range cases.Read {
		grant, known := ReadGrant(test.Value)
		if known != (test.Grant != nil) || known && grant != test.Grant.grant() {
			t.Errorf("%s: %q reads as %+v, %v", test.Name, test.Value, grant, known)
		}
	}
	for _, test := range cases.Write {
		grant := test.Grant.grant()
		if value := grant.Value(); value != test.Value {
			t.Errorf("%s: %q is not %q", test.Name, value, test.Value)
		}
	}
	if len(cases.Read) < 20 || len(cases.Write) < 4 {
		t.Error("cases are missing")
	}
}

func TestClientsAreAsTheVectorsSay(t *testing.T) {
	cases := readVectors(t).Client
	for _, test := range cases.Read {
		client, known := ReadClient(test.Value)
		if known != (test.Client != nil) || known && strconv.FormatUint(client, 16) != *test.Client {
			t.Errorf("%s: %q reads as %x, %v", test.Name, test.Value, client, known)
		}
	}
	for _, test := range cases.Write {
		client, err := strconv.ParseUint(test.Client, 16, 64)
		if err != nil || ClientValue(client) != test.Value {
			t.Errorf("%s: %q is not %q", test.Name, ClientValue(client), test.Value)
		}
	}
	if len(cases.Read) < 12 || len(cases.Write) < 3 {
		t.Error("cases are missing")
	}
}

func TestReasonsAreThoseOfTheVectorsInTheirOrder(t *testing.T) {
	var words []Reason
	for _, test := range readVectors(t).Shed.Write {
		words = append(words, Reason(test.Value))
	}
	if !slices.Equal(words, Reasons) {
		t.Errorf("%q is not %q", Reasons, words)
	}
}

func TestTimesToComeBackAreAsTheVectorsSay(t *testing.T) {
	for _, test := range readVectors(t).Pushback.Read {
		pushback, known := ReadPushback(test.Value)
		if known != (test.Ms != nil) || known && pushback.Milliseconds() != *test.Ms {
			t.Errorf("%s: %q reads as %v, %v", test.Name, test.Value, pushback, known)
		}
	}
}

func TestLevelsAreAsTheVectorsSay(t *testing.T) {
	cases := readVectors(t).Level
	for _, test := range cases.Parts {
		if parts := LevelFromWire(test.Level).parts(test.Priority); parts != test.Parts {
			t.Errorf("priority %d at level %d: %d, not %d", test.Priority, test.Level, parts, test.Parts)
		}
	}
	for _, test := range cases.Sent {
		sent := []byte(test.Sent)
		for call := range sent {
			sent[call] = '0'
			if passes(LevelFromWire(test.Level).parts(test.Priority), &test.Carry) {
				sent[call] = '1'
			}
		}
		if string(sent) != test.Sent {
			t.Errorf("priority %d at level %d: %s, not %s", test.Priority, test.Level, sent, test.Sent)
		}
	}
}
