"""Secrets at random places of command lines and texts as people write them, and texts that have none."""

from __future__ import annotations

import json
import string

from hypothesis import strategies as st

_LETTERS = string.ascii_letters + string.digits
# As services make them: at least twelve characters, letters and digits.
SECRETS = st.text(_LETTERS, min_size=12, max_size=40).filter(
    lambda text: any(each.isdigit() for each in text) and any(each.isalpha() for each in text)
)
_NAMES = st.sampled_from(
    (
        "api_key", "api-key", "apiKey", "APIKey", "HF_TOKEN", "hf-token", "hfToken", "WANDB_API_KEY", "token",
        "password", "passwd",
        "pwd", "PGPASSWORD", "passphrase", "secret", "client_secret", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id",
        "auth", "credentials", "accessToken", "x-api-key", "auth_token", "wandb.api_key", "OPENAI_API_KEY2", "cookie",
        "GITHUB_PAT", "GITLAB_PAT", "PAT", "AUTH", "LLM_KEY", "CONNECTION_STRING", "SERVICE_DSN", "sig",
        "connectionString",
    )
)  # fmt: skip


def _one_place(name: str, secret: str) -> tuple[list[list[str]], list[str]]:
    """Returns the ways to write the secret as words of a command, and as a text."""
    words = [
        [f"--{name}", secret],
        [f"--{name}={secret}"],
        [f"{name}={secret}"],
        ["--header", f"Authorization: Bearer {secret}"],
        ["--header=Authorization: Basic " + secret],
        ["-H", f"Authorization: {secret}"],
        ["--config", json.dumps({"lr": 0.1, name: secret})],
        [f"--config={{'{name}': '{secret}'}}"],
        ["--config", json.dumps(json.dumps({"x": {name: secret, "y": [1]}}))],
        ["--store", f"redis://me:{secret}@host:6379/0"],
        ["--repo", f"https://{secret}1@github.com/x"],
        ["--url", f"https://host/path?n=1&access_token={secret}&m=2"],
        [f"--url=https://bucket.example/x?X-Amz-Signature={secret}"],
        ["--opts", f"lr=1,{name}={secret},n=2"],
        ["--slack-webhook", f"https://hooks.example/x/{secret}"],
        [f"SLACK_WEBHOOK=https://hooks.example/x/{secret}"],
        [f"--webhook_url=https://hooks.example/{secret}?n=1"],
        [f"DATABASE_URL=postgresql://me:{secret}@db:5432/x"],
        ["--data", f"https://me.blob.example/c/x.bin?sv=2024-01-01&se=2030&sr=b&sp=r&sig={secret}%3D&n=1"],
        [f"CONNECTION_STRING=Server=tcp:x,1433;User Id=me;Password={secret};Encrypt=true"],
        ["--storage", f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={secret}==;EndpointSuffix=x"],
    ]
    texts = [
        *(" ".join(each) for each in words),
        f"RuntimeError: cannot log in with {name}={secret}, see the docs",
        f"ValueError: invalid header {{'Authorization': 'Bearer {secret}'}}",
        f"requests.exceptions.HTTPError: 401 Client Error for url: https://host/v1?api_key={secret}",
        f"OperationalError: postgresql://me:{secret}@db/x: connection refused",
        f"subprocess.CalledProcessError: Command '['git', 'clone', 'https://oauth2:{secret}@host/x']' returned 128",
        f"TypeError: login() got an unexpected argument: Client({name}='{secret}', n=1)",
        f"KeyError: 'x' in {{'{name}': '{secret}', 'n': 1}}",
        f'{{"level": "error", "{name}": "{secret}"}}',
        f"export {name}={secret}; python train.py",
        f"curl -H 'Authorization: Bearer {secret}' https://host",
        f"cannot post to https://hooks.slack.com/services/T0/B0/{secret}: 404",
        f"https://x.webhook.office.com/webhookb2/{secret}@0/IncomingWebhook/1 refused",
        f"{{'webhook_url': 'https://hooks.example/x/{secret}', 'n': 1}}",
        f"https://login.example/?next=%2Fcallback%3Ftoken%3D{secret}%26n%3D1",
        # as other programs escape it: in JSON, once more in JSON, for HTML
        json.dumps({"line": json.dumps({name: secret})}).replace("\\", "\\" * 2),
        f"{{\\u0022{name}\\u0022: \\u0022{secret}\\u0022}}",
        f"{{\\\\u0022n\\\\u0022:1,\\\\u0022{name}\\\\u0022:\\\\u0022{secret}\\\\u0022}}",
        f"https://host/x?n=1\\u0026{name}\\u003d{secret}\\u0026m=2",
        f"{{\\x27{name}\\x27: \\x27{secret}\\x27}}",
        f"<pre>{{&quot;{name}&quot;: &quot;{secret}&quot;}}</pre>",
    ]
    return words, texts


# Well-known forms of tokens, as `form(secret)`: they are known without a name.
FORMS = (
    "sk-{}", "hf_{}AbCdEfGhIjKlMnOpQr", "ghp_{}", "github_pat_{}0123456789", "glpat-{}", "xoxb-{}", "nvapi-{}",
    "eyJhbGciOiJIUzI1NiJ9.{}.{}", "redis://me:{}", "https://:{}",
)  # fmt: skip


@st.composite
def command_of(draw: st.DrawFn, secret: str) -> list[str]:
    words, _ = _one_place(draw(_NAMES), secret)
    before = draw(st.lists(st.sampled_from(("train.py", "--lr", "0.1", "--use-token", "a=b", "data/x")), max_size=4))
    after = draw(st.lists(st.sampled_from(("--seed", "7", "out=/tmp/x", "--fast")), max_size=3))
    # What stands behind a switch that looks like an option of a secret must not be what hides it.
    return ["train.py", *before, *draw(st.sampled_from(words)), *after]


@st.composite
def text_of(draw: st.DrawFn, secret: str) -> str:
    _, texts = _one_place(draw(_NAMES), secret)
    before = draw(st.sampled_from(("", "rank 1 (pid 812) failed with exit code 1: ", "loss 2.31\n", "at 12:00, ")))
    after = draw(st.sampled_from(("", "; restart 1 of 3", "\nnext line", ")", " and more")))
    return f"{before}{draw(st.sampled_from(texts))}{after}"


ORDINARY_WORDS = (
    "train.py --lr 3e-4 --batch-size 32 --max-tokens 4096 --token-type-ids 3",
    "train.py --pad-token [PAD] --eos_token </s> --image-token <image> --csv-img-key filepath --csv-caption-key title",
    "train.py --image-key pixels --observation-key joint_angles --obs_key=state --action-key torque data.depth_key=d",
    "train.py --sort-key length --group_key=user --text-key text --monitor val_loss",
    "train.py --tokenizer=meta-llama/Llama-3-8B --vocab_size 32000 --token-dropout 0.1",
    "train.py trainer.max_epochs=3 data.key=image +model.num_key_value_heads=8 hydra.run.dir=/tmp/x",
    "train.py --config configs/key.yaml --deepspeed ds.json --rdzv-conf token_file=/data/secret,join_timeout=30",
    "train.py --ssl-key /etc/ssl/key.pem --credentials=/srv/me/sa.json --auth none --key-frames 12",
    "train.py --author me --authority local --signal SIGTERM --sigma 0.3 --assignments a,b --passes 3 --keys a,b",
    "python -m torch.distributed.run --rdzv-endpoint host:29400 s3://bucket/key/train.py ssh://git@host/x",
    "train.py --basic --bearing 3 --design flat url=https://host:8080/a/b?step=3&rank=1",
)

ORDINARY_LINES = (
    "rank 1 (pid 812) was killed by SIGKILL because memory ran out (core dumped)",
    "rank 3 (pid 77) failed with exit code 1: KeyError: 'loss'",
    "rank 3 (pid 77) failed with exit code 1: KeyError: 'layers.0.weight12345'",
    "cannot read the language model's key /data/key: Permission denied; check the file",
    "cannot ask a language model: no key is given; set --ft-attribution-llm-api-key-file or the variable "
    "LLM_API_KEY_FILE, or --ft-attribution-llm-model none to judge by rules alone",
    "cannot meet at 10.0.0.1:29400 without a secret: anybody could join; use --rdzv-conf token_file=F",
    "cannot join: the token of this node is another one; check --rdzv-conf token_file on both nodes",
    "the token: it is empty; write one",
    "authentication failed: the peer has another token",
    "AuthenticationError: the credentials were rejected by the server",
    "TokenError: ('EOF in multi-line statement', (3, 0))",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "SyntaxError: Unexpected token: '}'",
    "    rows = sorted(items, key=lambda each: each.rank)",
    "    found = max(scores, key=scores.get)",
    '    token = os.environ["HF_TOKEN"]',
    "    client = Client(api_key=api_key, password=args.password)",
    "    def login(token: str, password: Optional[str] = None) -> None:",
    "    attn = self.attn(query=q, key=k, value=v, key_padding_mask=mask)",
    '  File "/opt/venv/lib/python3.11/site-packages/transformers/tokenization_utils.py", line 88, in pad_token',
    'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "fc1.weight", "fc1.bias".',
    "RuntimeError: Unexpected key: module.encoder.layer.0.weight",
    "loss=2.31 tokens/s=81234 num_tokens=8192 token_acc=0.91 key_dim=64 max_token=12",
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//1",
    "rank 2 stands in load (data.py:88); ranks 0, 1, 3 stand in all_reduce (c10d.py:12)",
    "PWD=/srv/me OLDPWD=/tmp SSH_AUTH_SOCK=/run/agent.sock",
    "basic functionality and Basic configuration are there; bearer of good news",
    "stop requested by user 1001: holdfast stop job-key-1",
    "warning: the passphrase is asked for on the terminal",
    "connecting to https://me@host:8443/path and ssh://git@github.com/org/repo, see https://docs.example/token#auth",
    "HFValidationError: Repo id must use alphanumeric chars: '/data/hf_transformers_cache/sk-learn'",
    "signature: (x, y) -> z; sigma=3; signal=11; assignment: rank 3",
    "special tokens: pad_token='[PAD]' eos_token='</s>' mask_token: [MASK] unk_token_id=50256 token_id: 128001",
    "the pass: second of three; pass 2: 80 % done; compass=3",
    "cookies are not used; author: somebody; authored=2024",
    "connection refused: no connection string; file_pat=*.tar pattern: x_pat y; the pat on the back",
    "webhook: failed to post; webhook url is not set; webhooks=3",
    "connect to https://host:8443 or http://[::1]:8080",
    "meet at tcp://10.0.0.1:29400",
    "install scikit-learn or sk-learn",
    "the design=flat; sigma=0.3&n=1",
)
