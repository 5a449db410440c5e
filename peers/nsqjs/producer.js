// An nsqjs producer that numbers what it publishes, for `cargo xtask suite steer`: producer.js HOST:PORT TOPIC
//
// It publishes until its standard input ends, then waits for the answers and prints what it sent and which of it failed
// as a line of JSON.
const { Writer } = require('nsqjs')

// How many publishes may be without an answer.
const WINDOW = 64

const [address, topic] = process.argv.slice(2)
const [host, port] = address.split(':')
const writer = new Writer(host, Number(port))
const failed = []
let sent = 0
let next = 0
let stopped = false

const end = () => {
  console.log(JSON.stringify({ sent, failed }))
  // This end is meant. Outside of an answer's callback nsqjs tells it before close() returns.
  writer.removeListener('closed', closed)
  writer.close()
  process.exit(0)
}

const die = (reason) => {
  console.error(reason)
  process.exit(1)
}

const closed = () => die('the connection is closed')

const answered = (number, error) => {
  if (number !== next) die(`answer to publish ${number}, expected ${next}`)
  next += 1
  if (error) failed.push(number)
  if (stopped && next === sent) end()
}

const publish = () => {
  if (stopped) {
    if (next === sent) end()
    return
  }
  for (let burst = 0; burst < WINDOW / 2 && sent - next < WINDOW; burst += 1) {
    const number = sent
    sent += 1
    writer.publish(topic, String(number), (error) => answered(number, error))
  }
  setTimeout(publish, 5)
}

writer.on('ready', publish)
writer.on('error', die)
writer.on('closed', closed)
process.stdin.resume()
process.stdin.on('end', () => {
  stopped = true
})
writer.connect()
