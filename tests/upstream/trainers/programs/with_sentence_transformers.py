"""Sentence embeddings from pairs."""

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

model = SentenceTransformer("org/model")
rows = load_dataset("json", data_files="org/alpaca.json", split="train").select_columns(["instruction", "output"])
options = SentenceTransformerTrainingArguments(
    "out", max_steps=3, per_device_train_batch_size=4, bf16=True, report_to="none", save_strategy="no"
)
SentenceTransformerTrainer(model, options, rows, loss=MultipleNegativesRankingLoss(model)).train()
