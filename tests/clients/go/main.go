// Small programs that use Apache's Go client; tests/clients starts them.
//
// Every result is one JSON object per line on standard output. The tags `oldest` and `newest` of the
// build say which of its versions is linked: some calls came, or changed, after 2.1.0 and 2.1.2.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var output sync.Mutex

var programs = map[string]func(options){}

// options are the words of the command line, written as name=value.
type options map[string]string

func main() {
	given := options{}
	for _, word := range os.Args[2:] {
		name, value, found := strings.Cut(word, "=")
		if !found {
			panic("write " + word + " as name=value")
		}
		given[name] = value
	}
	rlog.SetLogLevel(given.text("log", "error"))
	program, found := programs[os.Args[1]]
	if !found {
		panic("no program " + os.Args[1])
	}
	program(given)
}

func event(kind string, values map[string]interface{}) {
	output.Lock()
	defer output.Unlock()
	values["event"] = kind
	values["at"] = time.Now().UnixNano()
	line, err := json.Marshal(values)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (given options) text(name string, otherwise string) string {
	if value, found := given[name]; found {
		return value
	}
	return otherwise
}

func (given options) number(name string, otherwise int) int {
	value, err := strconv.Atoi(given.text(name, strconv.Itoa(otherwise)))
	check(err)
	return value
}

func (given options) is(name string) bool {
	return given[name] == "true"
}

func (given options) nameServers() primitive.NamesrvAddr {
	return strings.Split(given["ns"], ";")
}

func (given options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: given["ak"], SecretKey: given["sk"]}
}

func (given options) trace() *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName: given["group"], Access: primitive.Local, NamesrvAddrs: given.nameServers(),
		Credentials: given.credentials(),
	}
}

// message returns a received message as the values of an event.
func messageValues(message *primitive.MessageExt) map[string]interface{} {
	body := string(message.Body)
	return map[string]interface{}{
		"body": body[:min(len(body), 200)], "size": len(body), "offset": message.QueueOffset,
		"queue":     fmt.Sprintf("%s:%d", message.Queue.BrokerName, message.Queue.QueueId),
		"reconsume": message.ReconsumeTimes, "keys": message.GetKeys(), "topic": message.Topic,
		"tags": message.GetTags(), "shardingKey": message.GetShardingKey(), "msgId": message.MsgId,
		"offsetMsgId": message.OffsetMsgId, "colour": message.GetProperty("colour"), "born": message.BornTimestamp,
	}
}
