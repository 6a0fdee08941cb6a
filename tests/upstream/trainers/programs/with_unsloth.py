"""unsloth's LoRA with TRL's SFTTrainer."""

from unsloth import FastLanguageModel  # isort: skip
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, tokenizer = FastLanguageModel.from_pretrained("org/model", max_seq_length=512, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"])
rows = load_dataset("json", data_files="org/chat/train.jsonl", split="train")
rows = rows.map(lambda row: {"text": tokenizer.apply_chat_template(row["messages"], tokenize=False)})
options = SFTConfig(
    output_dir="out", max_steps=3, per_device_train_batch_size=2, logging_steps=1, report_to="none", save_strategy="no"
)
SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows.select_columns("text"), args=options).train()
