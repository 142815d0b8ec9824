'use strict';
// The chat. Each turn is {role, content, reasoning, element, text, meta}. The assistant's turn of a
// failed request stays on the page but is not sent with later requests.
const turns = [];
let call = null;       // AbortController of the request that runs
let editing = null;    // index of the turn that the composer replaces
let canChat = null;    // the model has a chat template; null: not known

const kExample = 'Write a message below. Enter sends, Shift+Enter starts a new line.';
const isCompletion = () => $('mode').value === 'completion';

// Returns why nothing can be sent, or ''.
function findObstacle() {
  if (isStale || !served) return 'Waiting for the server.';
  if (served.state === 'loading') return 'The model is loading.';
  if (served.state === 'draining') return 'The server is draining and admits no new requests.';
  if (served.state === 'failed') return 'The engine has failed. The log of the daemon gives the reason.';
  if (!served.openai) return 'The chat needs the OpenAI-compatible listener: set openai.enabled: true.';
  if (!served.model.has_head) return 'This model computes embeddings and cannot generate text.';
  return '';
}

// Updates the controls of the chat to the state of the server.
function updateChat() {
  const obstacle = findObstacle(), model = served && served.model;
  if (model && canChat !== (model.chat_problem === '')) {
    canChat = model.chat_problem === '';
    $('mode').options[0].disabled = !canChat;
    $('mode').value = canChat ? 'chat' : 'completion';
    updateMode();
  }
  setText('chat-note', obstacle || (canChat ? '' : `Plain completion only: ${model.chat_problem}.`));
  $('send').disabled = Boolean(obstacle);
  $('send').hidden = call !== null;
  $('stop').hidden = call === null;
  $('clear').disabled = turns.length === 0;
  for (const button of document.querySelectorAll('#log button')) button.disabled = Boolean(obstacle) || call !== null;
}

function updateMode() {
  $('system-label').hidden = isCompletion();
  $('h-chat').textContent = isCompletion() ? 'Completion' : 'Chat';
  $('text').placeholder = isCompletion() ? 'Text to continue' : 'Message';
  $('log').dataset.empty = isCompletion()
    ? 'Write the beginning of a text below. Enter sends, Shift+Enter starts a new line.' : kExample;
}
$('mode').addEventListener('change', updateMode);
$('options').addEventListener('click', () => {
  $('settings').hidden = !$('settings').hidden;
  $('options').setAttribute('aria-expanded', String(!$('settings').hidden));
});

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function makeButton(text, act) {
  const button = make('button', '', text);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
}

function addTurn(role, content) {
  const turn = {role, content, reasoning: '', element: make('li', role), text: make('div', 'text', content), meta: make('div', 'meta')};
  turn.element.setAttribute('aria-label', role === 'user' ? 'You' : 'Answer');
  turn.element.append(turn.text, turn.meta);
  turns.push(turn);
  $('log').append(turn.element);
  return turn;
}

// Removes the turns from `index` on.
function truncate(index) {
  for (const turn of turns.splice(index)) turn.element.remove();
}

function setEditing(index) {
  editing = index;
  $('edit-note').hidden = index === null;
}

// Shows the fenced parts (```) of an answer as blocks of code.
function formatCode(turn) {
  const parts = turn.content.split(/^```.*\n?/m);
  if (parts.length < 3) return;
  turn.text.replaceChildren(...parts.map((part, i) => i % 2 ? make('pre', '', part.replace(/\n$/, '')) : new Text(part)));
}

function openaiUrl() {
  const {address, tls} = served.openai, port = address.slice(address.lastIndexOf(':') + 1);
  const path = isCompletion() ? 'completions' : 'chat/completions';
  return `${tls ? 'https' : 'http'}://${location.hostname}:${port}/v1/${path}`;
}

function makeBody() {
  const body = {model: served.model.id, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}};
  for (const id of ['temperature', 'top-p', 'max-tokens', 'seed']) {
    if ($(id).value !== '') body[id.replace('-', '_')] = Number($(id).value);
  }
  if (isCompletion()) {
    body.prompt = turns[turns.length - 1].content;
    return body;
  }
  const system = $('system').value.trim();
  body.messages = system ? [{role: 'system', content: system}] : [];
  for (const {role, content, failed} of turns) if (!failed) body.messages.push({role, content});
  return body;
}

async function readEvents(stream, take) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = '';;) {
    const {value, done} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line.startsWith('data: ')) take(line.slice(6).trim());
  }
}

function showError(turn, {message, param, code}) {
  turn.failed = true;
  const error = make('div', 'error', message);
  error.setAttribute('role', 'alert');
  const details = [param && `param: ${param}`, code && `code: ${code}`].filter(Boolean).join(', ');
  if (details) error.append(make('div', 'quiet', details));
  turn.element.insertBefore(error, turn.meta);
}

// Sends the turns and streams the answer into a new turn.
async function generate() {
  const body = makeBody(), log = $('log'), turn = addTurn('assistant', '');
  const start = performance.now();
  let first = null, last = start, tokens = 0, finish = '', thoughts = null;
  call = new AbortController();
  log.ariaBusy = turn.element.ariaBusy = 'true';  // the answer is announced when it is complete
  log.scrollTop = log.scrollHeight;
  updateChat();

  const showMeta = end => {
    const ms = first === null ? 0 : last - first;
    const facts = [end, tokens ? plural(tokens, 'token') : '',
                   tokens > 1 && ms > 0 ? `${rate((tokens - 1) / ms * 1000)} tokens/s` : '',
                   first === null ? '' : `first token after ${duration((first - start) / 1000)}`];
    turn.meta.replaceChildren(...facts.filter(Boolean).map(fact => make('span', '', fact)));
  };
  const take = data => {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw chunk.error;
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    for (const {delta, text, finish_reason} of chunk.choices) {
      const content = text ?? delta.content ?? '', reasoning = (delta && delta.reasoning_content) || '';
      if (content || reasoning) first ??= performance.now();
      if (reasoning && !thoughts) {
        thoughts = make('details');
        thoughts.append(make('summary', '', 'Reasoning'), make('div', 'text'));
        turn.element.prepend(thoughts);
      }
      if (reasoning) thoughts.lastChild.append(reasoning);
      if (content) turn.text.append(content);
      turn.reasoning += reasoning;
      turn.content += content;
      finish = finish_reason || finish;
    }
    if (chunk.usage) tokens = chunk.usage.completion_tokens;
    last = performance.now();
    showMeta('');
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };

  let end = '';
  try {
    const answer = await fetch(openaiUrl(), {method: 'POST', signal: call.signal, body: JSON.stringify(body),
                                             headers: {...headers(), 'Content-Type': 'application/json'}});
    if (!answer.ok) throw (await answer.json()).error;
    await readEvents(answer.body, take);
    end = {length: 'max tokens reached', content_filter: 'filtered'}[finish] || '';
  } catch (error) {
    if (error.name === 'AbortError') {
      end = 'stopped';
    } else {
      showError(turn, error instanceof Error ? {message: `The connection to ${new URL(openaiUrl()).host} failed: ${error.message}`} : error);
    }
  }
  call = null;
  log.ariaBusy = turn.element.ariaBusy = 'false';
  formatCode(turn);
  showMeta(end);
  if (!turn.failed && !turn.content && !turn.reasoning && !end) turn.text.append(make('span', 'quiet', 'The answer is empty.'));
  const actions = make('span', 'actions');
  actions.append(makeButton(turn.failed ? 'Try again' : 'Regenerate', () => {
    truncate(turns.indexOf(turn));
    generate();
  }));
  if (turn.content && navigator.clipboard) actions.append(makeButton('Copy', () => navigator.clipboard.writeText(turn.content)));
  turn.meta.append(actions);
  log.scrollTop = log.scrollHeight;
  updateChat();
}

function send() {
  const text = $('text').value;
  if ($('send').disabled || call || !text.trim()) return;
  if (editing !== null) truncate(editing);
  setEditing(null);
  const turn = addTurn('user', text);
  turn.meta.append(makeButton('Edit', () => {
    setEditing(turns.indexOf(turn));
    $('text').value = turn.content;
    growText();
    $('text').focus();
  }));
  $('text').value = '';
  growText();
  generate();
}

function growText() {
  const text = $('text');
  text.style.height = 'auto';
  text.style.height = `${text.scrollHeight + 2}px`;
}

$('composer').addEventListener('submit', event => {
  event.preventDefault();
  send();
});
$('text').addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$('text').addEventListener('input', growText);
$('stop').addEventListener('click', () => {
  call.abort();
  $('text').focus();
});
$('clear').addEventListener('click', () => {
  if (call) call.abort();
  truncate(0);
  setEditing(null);
  updateChat();
  $('text').focus();
});
$('edit-cancel').addEventListener('click', () => {
  setEditing(null);
  $('text').value = '';
  growText();
});
updateMode();
growText();
updateTheme();
poll();
