import { parseArgs } from 'node:util';
import { WebClient } from '@slack/web-api';
import pRetry from 'p-retry';

const { values } = parseArgs({ options: { channel: { type: 'string' }, since: { type: 'string' } } });
const client = new WebClient(process.env.CHAT_TOKEN);
const history = await pRetry(() => client.conversations.history({ channel: values.channel }), { retries: 3 });
process.stdout.write(JSON.stringify(history.messages));
