package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func init() {
	programs["transact"] = transact
}

// The third state is a number, because the client's constant is misspelled and was renamed later.
var states = map[string]primitive.LocalTransactionState{
	"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState, "unknown": 3,
}

// decider ends a transaction as its message's body says, and answers each check with one word.
type decider struct{ answer string }

func (decides decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	word, _, _ := strings.Cut(string(message.Body), ":")
	return states[word]
}

func (decides decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	event("check", map[string]interface{}{
		"body": string(message.Body), "topic": message.Topic,
		"times": message.GetProperty("TRANSACTION_CHECK_TIMES"), "transaction": message.TransactionId,
	})
	return states[decides.answer]
}

// transact sends a half message for each word of plan, and answers checks until the end of its standard input.
func transact(given options) {
	client, err := rocketmq.NewTransactionProducer(decider{given.text("check", "commit")}, producerOptions(given)...)
	check(err)
	check(client.Start())
	event("started", map[string]interface{}{})
	for n, word := range strings.Split(given["plan"], ",") {
		message := primitive.NewMessage(given["topic"], []byte(fmt.Sprintf("%s:%d", word, n)))
		if seconds, found := given["immunity"]; found {
			message.WithProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", seconds)
		}
		result, err := client.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			event("failed", map[string]interface{}{"body": n, "text": err.Error()})
			continue
		}
		event("half", map[string]interface{}{"body": n, "state": int(result.State), "transaction": result.TransactionID})
	}
	event("sent", map[string]interface{}{})
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}
