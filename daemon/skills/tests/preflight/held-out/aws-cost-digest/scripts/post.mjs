import fs from 'node:fs';
import { WebClient } from '@slack/web-api';
import slackify from 'slackify-markdown';

const [channel, file] = process.argv.slice(2);
const token = process.env.SLACK_BOT_TOKEN;
if (!token) {
  console.error('SLACK_BOT_TOKEN missing');
  process.exit(2);
}
const web = new WebClient(token);
await web.chat.postMessage({ channel, text: slackify(fs.readFileSync(file, 'utf8')) });
