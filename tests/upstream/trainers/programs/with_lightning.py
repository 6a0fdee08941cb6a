"""Lightning's Trainer with FSDP."""

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Embedding(256, 256), torch.nn.TransformerEncoderLayer(256, 4), torch.nn.Linear(256, 256)
        )

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(batch).flatten(0, 1), batch.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.randint(0, 256, (16, 128)), batch_size=2)
trainer = lightning.Trainer(
    devices=2, strategy="fsdp", precision="bf16-mixed", max_steps=3, logger=False, enable_checkpointing=False
)
trainer.fit(Model(), data)
